-- The ledger in Redis, second part of every script: which rules are in force, and what stands beside the job's row that
-- older versions read and write. core/ledger/standing.py says why each rule is as it is.

local NEVER = 32503680000
local IDENTITY_AHEAD_S = 10
local FENCED_AT = 3.2e10
local FENCED_BY = 'coordd rules 2: upgrade this node'
local ACTIVATIONS_MAX = 50
local STANDING_COLUMNS = {
  'job', 'horizon', 'suspended', 'version', 'changed_by', 'sequence', 'digest', 'schedule', 'activated_at',
  'counts_from',
}

local begun  -- what identity_from has found
local function identity_from()
  if begun then return begun end
  local kept = redis.call('HGET', prefix .. 'meta', 'identity_from')
  if kept then
    begun = tonumber(kept)
  elseif redis.call('EXISTS', prefix .. 'jobs') == 1 then
    begun = NEVER
  else
    hset(prefix .. 'meta', 'rules', '2', 'identity_from', '0')
    begun = 0
  end
  return begun
end

-- ---- rows of jobs

local function read_job(name)
  local read, fault = look_at_job(name)
  if fault then bad('the job ' .. name, fault) end
  return read
end

local function is_fenced(read)
  return read.horizon >= FENCED_AT and read.suspended == 1 and read.changed_by == FENCED_BY
end

-- What older versions read of a job.
local function write_fence(name, read, fence, version, shut)
  local row = {
    job = name, fence = fence, horizon = FENCED_AT, suspended = shut and 1 or 0, version = version,
    changed_by = FENCED_BY,
  }
  write_row(prefix .. 'job:' .. name, JOB_COLUMNS, row, '', read and read.kept)
  if not read then redis.call('SADD', prefix .. 'jobs', name) end
end

local function write_standing(row, kept)
  write_row(prefix .. 'standing:' .. row.job, STANDING_COLUMNS, row, '', kept)
end

-- A row of an older version has no definition.
local function whole(row)
  row.sequence, row.digest, row.schedule = row.sequence or 0, row.digest or '', row.schedule or ''
  row.activated_at, row.counts_from = row.activated_at or 0, row.counts_from or 0
  return row
end

-- What the ledger keeps of a job; ``read`` is what older versions see.
local function get_job(name)
  local read = read_job(name)
  if not read or identity_from() == NEVER then return read and whole(read) end
  local row, fault = read_row(prefix .. 'standing:' .. name, STANDING_COLUMNS)
  if fault then bad('the job ' .. name, fault) end
  if not row then return whole(read) end  -- made by an older version, and not swept yet
  row.fence, row.read = read.fence, read
  return row
end

local function put_job(row)
  if identity_from() == NEVER then
    local new = not row.kept
    write_row(prefix .. 'job:' .. row.job, JOB_COLUMNS, row, '', row.kept)
    if new then redis.call('SADD', prefix .. 'jobs', row.job) end
    return
  end
  whole(row)
  local read = row.read
  if read then
    write_standing(row, row.kept)
  else
    read = read_job(row.job)
    write_standing(row, nil)
  end
  local waits = read and read.horizon >= FENCED_AT and read.suspended == 0
  write_fence(row.job, read, row.fence, row.version, not waits)
end

local function job_row(name)
  local job = get_job(name)
  if not job then
    job = whole({ job = name, fence = 0, horizon = now, suspended = 0, version = 0, changed_by = '' })
    put_job(job)
    job = get_job(name)
  end
  return job
end

-- For people: a bad row makes way for a sound one.
local function mend_job(name)
  local _, fault = look_at_job(name)
  local kept, beside
  if identity_from() ~= NEVER then kept, beside = read_row(prefix .. 'standing:' .. name, STANDING_COLUMNS) end
  if not fault and not beside then return end
  passes = false
  local job = whole({ job = name, horizon = now, suspended = 0, version = 0, changed_by = '' })
  if kept and not beside then
    for _, column in ipairs(STANDING_COLUMNS) do job[column] = kept[column] end
  else
    local last = redis.call('LRANGE', prefix .. 'activations:' .. name, -1, -1)[1] or ''
    local sequence, digest, schedule, at, from = string.match(last, '^(.-)\n(.-)\n(.-)\n(.-)\n(.-)\n')
    if sequence then
      job.sequence, job.digest, job.schedule = tonumber(sequence), digest, schedule
      job.activated_at, job.counts_from = tonumber(at), tonumber(from)
    end
  end
  job.fence = math.floor(now * 1000000)
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. name, 0, -1)) do
    local row = look_at_run(run)
    if row and row.token < 2 ^ 53 - 2 ^ 40 then job.fence = math.max(job.fence, row.token) end
  end
  if identity_from() == NEVER then
    write_row(prefix .. 'job:' .. name, JOB_COLUMNS, job, '', nil)
  else
    write_standing(job, nil)
    write_fence(name, nil, job.fence, job.version, true)
  end
end

local function keep_fenced(name)
  local read, fault = look_at_job(name)
  if identity_from() == NEVER or not read or fault or is_fenced(read) then return end
  if redis.call('EXISTS', prefix .. 'standing:' .. name) == 0 then write_standing(whole(read), nil) end
  local waits = false
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. name, 0, -1)) do
    local row = look_at_run(run)
    waits = waits or row and row.state == 'received' and row.received_at <= identity_from()
  end
  if read.horizon >= FENCED_AT and waits and read.changed_by == FENCED_BY then return end
  write_fence(name, read, read.fence, read.version, not waits)
end

-- A run that has no row yet: the word for why it may not have one, if it is scheduled.
local function refused(job, of)
  if of.scheduled ~= 1 then return nil end
  local begin = identity_from()
  if of.identity_from ~= begin then return 'outdated' end
  if begin ~= NEVER and job.digest ~= '' then
    if of.digest ~= job.digest then return 'differs' end
    if of.due <= math.min(job.counts_from, now) then return 'finished' end
  end
  if of.due - now > 5 then return 'early', of.due - now - 5 end
  return nil
end

local function was_activated(name, digest)
  for _, kept in ipairs(redis.call('LRANGE', prefix .. 'activations:' .. name, 0, -1)) do
    if string.match(kept, '^[^\n]*\n([^\n]*)\n') == digest then return true end
  end
  return false
end

-- sequence, digest, digest of the schedule, when, from when it counts, by whom: a line each.
local function put_activation(job, by)
  local key = prefix .. 'activations:' .. job.job
  local lines = { exact(job.sequence), job.digest, job.schedule, exact(job.activated_at), exact(job.counts_from), by }
  redis.call('RPUSH', key, table.concat(lines, '\n'))
  redis.call('LTRIM', key, -ACTIVATIONS_MAX, -1)
end
