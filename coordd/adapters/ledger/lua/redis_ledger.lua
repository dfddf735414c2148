-- The ledger in Redis, first part of every script: the time, the epoch, and the rows (core.rows.Store).
--
-- KEYS[1] is the prefix of all keys, "{coordd:<cluster>}:". The hash tag puts a whole cluster's ledger on one node
-- of a Redis Cluster: the sweep reads all open rows in one step, and a claim looks at other runs of the job.
-- ARGV: quarantine_s, short_quarantine_s, the mark that the caller saw last; the identity that it has used, whether
-- that was at this address, the identity that it proposes; then the operation's own arguments (ARGV[at + 1] on).
--
-- Redis does not undo what a script did before it failed. So whatever can be wrong with the arguments is checked by
-- the caller, and the first write is always one that a full memory refuses: an hset. But ``passes`` (a line before this
-- one says which operation may) is true for what a running job needs, and for what makes room or only changes rows.

local prefix = KEYS[1]
local SCHEMA = '1'

local at = 6
local function take() at = at + 1; return ARGV[at] end
local function take_number() return tonumber(take()) end

-- A full Redis refuses a script's first write if that may need memory, and lets a script go on that has written. To
-- delete what is not there needs no memory, and counts as a write: every version of Redis lets pass what follows.
local function hset(key, ...)
  if passes then
    redis.call('DEL', prefix .. 'nothing')
    passes = false
  end
  redis.call('HSET', key, ...)
end

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

local meta = redis.call('HMGET', prefix .. 'meta', 'schema', 'epoch', 'open_at', 'mark', 'short',
  'identity', 'predecessor', 'provisional', 'closed')
if meta[9] then return redis.error_reply('CLOSED ' .. meta[9]) end
if meta[1] and meta[1] ~= SCHEMA then return redis.error_reply('SCHEMA ' .. meta[1]) end

local quarantine_s, short_quarantine_s, seen = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local open_at, mark, short = tonumber(meta[3] or '0'), meta[4] or '', meta[5] == '1'

-- ---- whose ledger this is (core/ledger/identity.py says why); before anything is written

local identity, predecessor, provisional = meta[6] or '', meta[7] or '', meta[8] == '1'
local pin, at_home, proposal = ARGV[4], ARGV[5] == '1', ARGV[6]
local gives_identity = ''
if pin ~= '' and identity ~= pin then
  local recovers = meta[2] ~= replid or open_at > now
  if at_home and (identity == '' or provisional and recovers) then
    gives_identity = pin
  elseif identity == '' or predecessor ~= pin then
    return redis.error_reply('FOREIGN ' .. identity)
  end
elseif identity == '' then
  gives_identity = proposal
end

local function remember()
  hset(prefix .. 'meta', 'schema', SCHEMA, 'epoch', replid, 'open_at', exact(open_at), 'mark', mark,
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

if gives_identity ~= '' then
  identity = gives_identity
  hset(prefix .. 'meta', 'identity', identity, 'provisional',
    pin == '' and recovering_s() > 0 and '1' or '0')
end

-- What each answer begins with: the mark of the ledger's life, its identity, and the one that it continues.
local whose = mark .. ' ' .. identity .. ' ' .. predecessor

-- ---- rows

local RUN_COLUMNS = {
  'run', 'job', 'digest', 'args', 'policy', 'scheduled', 'fire_at', 'created_at', 'by',
  'state', 'attempt', 'not_before', 'failures', 'relaunches',
  'token', 'nonce', 'node', 'lease', 'until', 'boot', 'beat', 'commit_token', 'cancel',
  'received_at', 'started_at', 'ended_at', 'exit_code', 'application_id', 'reason',
  'due',
}
local ATTEMPT_COLUMNS = {
  'run', 'attempt', 'token', 'nonce', 'node', 'state',
  'received_at', 'started_at', 'ended_at', 'exit_code', 'application_id', 'reason',
}
local JOB_COLUMNS = { 'job', 'fence', 'horizon', 'suspended', 'version', 'changed_by' }
local NUMBERS = {
  scheduled = true, fire_at = true, created_at = true, attempt = true, not_before = true, failures = true,
  relaunches = true, token = true, lease = true, ['until'] = true, beat = true, commit_token = true, cancel = true,
  received_at = true, started_at = true, ended_at = true, due = true,
  sequence = true, activated_at = true, counts_from = true,
  fence = true, horizon = true, suspended = true, version = true,
}
local TERMINAL = { success = true, failure = true, revoked = true, rejected = true, missed = true, lost = true }
local ACTIVE = { received = true, started = true, unknown = true, retry = true }

local STATES = {
  pending = true, received = true, started = true, success = true, failure = true, retry = true, revoked = true,
  rejected = true, missed = true, lost = true, unknown = true,
}
-- The year 3000, in seconds; and what a number of any other column may be at most (core.sound has each one's bounds).
local INSTANT_MAX, NUMBER_MAX = 32503680000, 2 ^ 53

-- Texts in bytes (core.sound counts characters, of four bytes at most).
local TEXT_MAX, LONG = 4 * 1024, { args = 256 * 1024, reason = 256 * 1024 }

-- A row that no node wrote: the operation ends here, with the answer "bad". Nothing may have been written before.
local function bad(what, why) error({ bad = 'the row of ' .. what .. ' is bad: ' .. why }) end

-- A hash as a row; a column that an older version did not write is empty, one that a newer version wrote stays.
-- A field that should be a number and is not makes the row bad: its name is then the second answer.
local function read_row(key, columns)
  local values = redis.call('HMGET', key, unpack(columns))
  if not values[1] then return nil end
  local row, kept, fault = {}, {}, nil
  for i, column in ipairs(columns) do
    local value = values[i]
    if NUMBERS[column] then
      value = tonumber(value or '0')
      if not value or not (math.abs(value) <= NUMBER_MAX) then
        fault = column .. ': expected a number, found ' .. string.sub(values[i], 1, 60)
        value = 0
      end
    else
      value = value or ''
      if string.find(value, '%z') then fault = column .. ': a NUL character' end
      if #value > (LONG[column] or TEXT_MAX) then fault = column .. ': ' .. #value .. ' bytes' end
    end
    row[column], kept[column] = value, value
  end
  row.kept = kept
  return row, fault
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
  if n > 0 then hset(key, unpack(flat)) end
end

local WHOLE = { 'attempt', 'failures', 'relaunches', 'token', 'beat', 'commit_token', 'scheduled', 'cancel' }
local POLICY_WORDS = {
  [1] = { relaunch = true, hold = true },
  [2] = { forbid = true, allow = true, queue = true, replace = true },
  [6] = { fixed = true, linear = true, exponential = true },
}
local PAST = { 'fire_at', 'created_at', 'not_before', 'received_at', 'started_at', 'ended_at', 'due' }

-- What is wrong with a run's row, or nil (core.sound.run_fault).
local function run_fault(row, fault)
  if fault then return fault end
  if not STATES[row.state] then return 'state: ' .. string.sub(row.state, 1, 60) .. ' is not a state' end
  for _, column in ipairs(WHOLE) do
    local value = row[column]
    if value < 0 or value ~= math.floor(value) then return column .. ': expected a whole number, found ' .. text(value) end
  end
  for _, column in ipairs(PAST) do
    local value = row[column]
    if value < 0 or value > INSTANT_MAX then return column .. ': expected an instant, found ' .. text(value) end
  end
  if row.state == 'retry' and row.attempt == 0 then return 'attempt: a run that waits for its retry has had one' end
  if row.scheduled > 1 or row.cancel > 1 then return 'scheduled, cancel: expected 0 or 1, found another number' end
  local words, n = {}, 0
  for word in string.gmatch(row.policy, '%S+') do
    n = n + 1
    words[n] = word
  end
  local sound = n == 7 and POLICY_WORDS[1][words[1]] and POLICY_WORDS[2][words[2]] and POLICY_WORDS[6][words[6]]
  for _, place in ipairs({ 3, 4, 5, 7 }) do
    local number = tonumber(words[place] or '')
    sound = sound and number and number >= 0 and number <= INSTANT_MAX
  end
  if not sound then return 'policy: expected seven words as a node writes them, found ' .. string.sub(row.policy, 1, 60) end
  return nil
end

-- A run's row, or nil, and what is wrong with it.
local function look_at_run(run)
  local row, fault = read_row(prefix .. 'run:' .. run, RUN_COLUMNS)
  if not row then return nil end
  if row.run ~= run then fault = 'run: expected its own name, found ' .. string.sub(row.run, 1, 60) end
  row.was = row.state
  return row, run_fault(row, fault)
end

-- When a run is due at the earliest; rows of an older version have one instant for both.
local function due_at(row) return math.max(row.fire_at, row.due) end

local function get_run(run)
  local row, fault = look_at_run(run)
  if fault then bad(run, fault) end
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
      redis.call('ZADD', prefix .. 'fired:' .. job, exact(due_at(row)), run)
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

-- A run whose row cannot be believed: it is taken out of everything that it may stand in.
local function drop_bad_run(run)
  local job = string.match(run, '^([^#@]*)')
  redis.call('DEL', prefix .. 'run:' .. run, prefix .. 'attempts:' .. run)
  for _, key in ipairs({ 'ended', 'open', 'active:' .. job, 'waiting:' .. job, 'fired:' .. job, 'list::', 'list::' .. job }) do
    redis.call('ZREM', prefix .. key, run)
  end
  for state in pairs(STATES) do
    local all, of_job = list_keys(job, state)
    redis.call('ZREM', all, run)
    redis.call('ZREM', of_job, run)
  end
end

local function look_at_job(job)
  local row, fault = read_row(prefix .. 'job:' .. job, JOB_COLUMNS)
  if row and not fault and (row.horizon < 0 or row.horizon > INSTANT_MAX or row.fence < 0
    or row.fence > 2 ^ 53 - 2 ^ 40) then  -- tokens to come need room above it
    fault = 'horizon, fence: expected an instant and a token, found ' .. text(row.horizon) .. ' and ' .. text(row.fence)
  end
  return row, fault
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
  return { token = tonumber(values[1]) or 0, nonce = values[2] or '', state = values[3] or '' }
end

local function last_fire_at(job)
  -- What lies ahead settles nothing that is still to come, and a damaged row must not put the job off for ever.
  local before = exact(math.min(now + 5, INSTANT_MAX))
  local found = redis.call('ZREVRANGEBYSCORE', prefix .. 'fired:' .. job, before, 0, 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(found[2] or '0')
end
