-- The ledger in Redis, first part of every script: the time, the epoch, and the rows (core.rows.Store).
--
-- KEYS[1] is the prefix of all keys, "{coordd:<cluster>}:". The hash tag puts a whole cluster's ledger on one node
-- of a Redis Cluster: the sweep reads all open rows in one step, and a claim looks at other runs of the job.
-- ARGV: quarantine_s, short_quarantine_s, the mark that the caller saw last, then the operation's own arguments.
--
-- Redis does not undo what a script did before it failed. So whatever can be wrong with the arguments is checked by
-- the caller, and the first write is always one that a full memory refuses.

local prefix = KEYS[1]
local SCHEMA = '1'

local at = 3
local function take() at = at + 1; return ARGV[at] end
local function take_number() return tonumber(take()) end

-- Numbers as text, so that they come back exactly: tokens have 16 digits, which neither %g nor cjson keeps.
local function exact(value)
  if value == math.floor(value) and math.abs(value) < 2 ^ 53 then return string.format('%.0f', value) end
  return string.format('%.17g', value)
end

local function text(value)
  if type(value) == 'number' then return exact(value) end
  return value
end

-- ---- the time, and what has become of the ledger

local stamp = redis.call('TIME')
local now = tonumber(stamp[1]) + tonumber(stamp[2]) / 1000000

local info = redis.call('INFO', 'replication')
if string.match(info, 'role:(%a+)') ~= 'master' then
  -- A script that finds nothing to write would answer from a replica, which may lag behind.
  return redis.error_reply('READONLY this server is a replica')
end
local replid = string.match(info, 'master_replid:(%x+)') or 'hidden'
local replicas = tonumber(string.match(info, 'connected_slaves:(%d+)') or '0')

local meta = redis.call('HMGET', prefix .. 'meta', 'schema', 'epoch', 'open_at', 'mark', 'short')
if meta[1] and meta[1] ~= SCHEMA then return redis.error_reply('SCHEMA ' .. meta[1]) end

local quarantine_s, short_quarantine_s, seen = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local open_at, mark, short = tonumber(meta[3] or '0'), meta[4] or '', meta[5] == '1'

local function remember()
  redis.call('HSET', prefix .. 'meta', 'schema', SCHEMA, 'epoch', replid, 'open_at', exact(open_at), 'mark', mark,
    'short', short and '1' or '0', 'quarantine_s', exact(quarantine_s))
end

-- There was a ledger before this one, or a caller knows of a longer lease: the quarantine lasts its whole length,
-- counted from its beginning.
local function lengthen()
  local whole = tonumber(mark) / 1000000 + quarantine_s
  if short or whole > open_at then
    short = false
    open_at = math.max(open_at, whole)
    remember()
  end
end

if meta[2] ~= replid then
  -- A promoted replica, a restarted server, a restored or an emptied data set: it may have lost its last writes.
  -- Only where nobody has ever seen a ledger is there nothing to wait for, but for others who might have.
  short = not meta[2] and seen == ''
  open_at = now + (short and short_quarantine_s or quarantine_s)
  mark = string.format('%.0f', now * 1000000)
  remember()
elseif short and seen ~= '' and seen ~= '-' and seen ~= mark then
  lengthen()
elseif open_at > 0 and now >= open_at then
  open_at = 0  -- for good: the clock may be set back
  remember()
elseif open_at > 0 and now < tonumber(mark) / 1000000 then
  if open_at > now + quarantine_s then  -- the clock was set back: it lasts no longer for that
    open_at = now + quarantine_s
    remember()
  end
elseif open_at > 0 and not short then
  lengthen()
end

local function recovering_s() return math.max(0, open_at - now) end

-- ---- rows

local RUN_COLUMNS = {
  'run', 'job', 'digest', 'args', 'policy', 'scheduled', 'fire_at', 'created_at', 'by',
  'state', 'attempt', 'not_before', 'failures', 'relaunches',
  'token', 'nonce', 'node', 'lease', 'until', 'boot', 'beat', 'commit_token', 'cancel',
  'received_at', 'started_at', 'ended_at', 'exit_code', 'application_id', 'reason',
}
local ATTEMPT_COLUMNS = {
  'run', 'attempt', 'token', 'nonce', 'node', 'state',
  'received_at', 'started_at', 'ended_at', 'exit_code', 'application_id', 'reason',
}
local JOB_COLUMNS = { 'job', 'fence', 'horizon', 'suspended', 'version', 'changed_by' }
local NUMBERS = {
  scheduled = true, fire_at = true, created_at = true, attempt = true, not_before = true, failures = true,
  relaunches = true, token = true, lease = true, ['until'] = true, beat = true, commit_token = true, cancel = true,
  received_at = true, started_at = true, ended_at = true,
  fence = true, horizon = true, suspended = true, version = true,
}
local TERMINAL = { success = true, failure = true, revoked = true, rejected = true, missed = true, lost = true }
local ACTIVE = { received = true, started = true, unknown = true, retry = true }

-- A hash as a row; a column that an older version did not write is empty, one that a newer version wrote stays.
local function read_row(key, columns)
  local values = redis.call('HMGET', key, unpack(columns))
  if not values[1] then return nil end
  local row, kept = {}, {}
  for i, column in ipairs(columns) do
    local value = values[i]
    if NUMBERS[column] then value = tonumber(value or '0') else value = value or '' end
    row[column], kept[column] = value, value
  end
  row.kept = kept
  return row
end

-- Only what differs from ``kept``, what was read: a renewal touches four of a run's columns. Of a new row ({}) that
-- is what is not empty, which is how an absent column reads.
local function write_row(key, columns, row, field_prefix, kept)
  local flat, n = {}, 0
  for _, column in ipairs(columns) do
    local value = row[column]
    if not kept or value ~= (kept[column] or NUMBERS[column] and 0 or '') then
      flat[n + 1], flat[n + 2] = field_prefix .. column, text(value)
      n = n + 2
    end
    if kept then kept[column] = value end
  end
  if n > 0 then redis.call('HSET', key, unpack(flat)) end
end

local function get_run(run)
  local row = read_row(prefix .. 'run:' .. run, RUN_COLUMNS)
  if row then row.was = row.state end
  return row
end

-- The lists that people page through: all runs, a job's, those in a state, a job's in a state; by creation.
local function list_keys(job, state)
  return prefix .. 'list:' .. state .. ':', prefix .. 'list:' .. state .. ':' .. job
end

local function put_run(row)
  local run, job, state, was = row.run, row.job, row.state, row.was
  local due_was = row.kept and row.kept.not_before
  row.kept = row.kept or {}
  write_row(prefix .. 'run:' .. run, RUN_COLUMNS, row, '', row.kept)
  if was ~= state then
    local created_at = exact(row.created_at)
    local all, of_job = list_keys(job, state)
    redis.call('ZADD', all, created_at, run)
    redis.call('ZADD', of_job, created_at, run)
    all, of_job = list_keys(job, was or '')
    if was then
      redis.call('ZREM', all, run)
      redis.call('ZREM', of_job, run)
    else
      redis.call('ZADD', all, created_at, run)
      redis.call('ZADD', of_job, created_at, run)
    end
    if ACTIVE[state] then
      redis.call('ZADD', prefix .. 'active:' .. job, 0, run)
    elseif ACTIVE[was] then
      redis.call('ZREM', prefix .. 'active:' .. job, run)
    end
    if state == 'pending' then
      redis.call('ZADD', prefix .. 'waiting:' .. job, exact(row.not_before), run)
    elseif was == 'pending' then
      redis.call('ZREM', prefix .. 'waiting:' .. job, run)
    end
    if TERMINAL[state] then
      redis.call('ZADD', prefix .. 'ended', exact(row.ended_at), run)
      redis.call('ZREM', prefix .. 'open', run)
    end
  end
  if not TERMINAL[state] and row.not_before ~= due_was then
    redis.call('ZADD', prefix .. 'open', exact(row.not_before), run)
  end
  if row.scheduled == 1 and was ~= state then
    if state == 'revoked' and row.token == 0 then  -- revoked before anybody claimed it: it may lie far ahead
      redis.call('ZREM', prefix .. 'fired:' .. job, run)
    else
      redis.call('ZADD', prefix .. 'fired:' .. job, exact(row.fire_at), run)
    end
  end
  row.was = state
end

local function drop_run(row)
  local run, job = row.run, row.job
  redis.call('DEL', prefix .. 'run:' .. run, prefix .. 'attempts:' .. run)
  for _, state in ipairs({ '', row.state }) do
    local all, of_job = list_keys(job, state)
    redis.call('ZREM', all, run)
    redis.call('ZREM', of_job, run)
  end
  redis.call('ZREM', prefix .. 'ended', run)
  redis.call('ZREM', prefix .. 'open', run)
  redis.call('ZREM', prefix .. 'active:' .. job, run)
  redis.call('ZREM', prefix .. 'waiting:' .. job, run)
  redis.call('ZREM', prefix .. 'fired:' .. job, run)
end

local function get_job(job) return read_row(prefix .. 'job:' .. job, JOB_COLUMNS) end

local function put_job(row)
  local new = not row.kept
  write_row(prefix .. 'job:' .. row.job, JOB_COLUMNS, row, '', row.kept)
  if new then redis.call('SADD', prefix .. 'jobs', row.job) end
end

-- All attempts of a run are one hash: a field is "<attempt>:<column>".
local function put_attempt(row)
  write_row(prefix .. 'attempts:' .. row.run, ATTEMPT_COLUMNS, row, exact(row.attempt) .. ':')
end

-- (token, nonce, state) of an attempt, or nil.
local function get_attempt(run, attempt)
  local field = exact(attempt) .. ':'
  local values = redis.call('HMGET', prefix .. 'attempts:' .. run, field .. 'token', field .. 'nonce', field .. 'state')
  if not values[1] then return nil end
  return { token = tonumber(values[1]), nonce = values[2], state = values[3] }
end

local function last_fire_at(job)
  return tonumber(redis.call('ZREVRANGE', prefix .. 'fired:' .. job, 0, 0, 'WITHSCORES')[2] or '0')
end
