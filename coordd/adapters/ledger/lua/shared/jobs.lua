-- The rows of jobs: which rules are in force, and what stands beside the row that older versions read and write
-- (core/ledger/standing.py says why each rule is as it is).

local begun  -- what identity_from has found
local function identity_from()
  if begun then return begun end
  local kept = redis.call('HGET', prefix .. 'meta', 'identity_from')
  if kept then
    begun = tonumber(kept)
  elseif redis.call('EXISTS', prefix .. 'jobs') == 1 then
    begun = NEVER
  else
    hset(prefix .. 'meta', 'rules', NEW_RULES, 'identity_from', '0')
    begun = 0
  end
  return begun
end

local function look_at_job(job)
  local row, fault = read_row(prefix .. 'job:' .. job, COLUMNS.JOB)
  if row and not fault and (row.horizon < 0 or row.horizon > INSTANT_MAX or row.fence < 0
    or row.fence > FENCE_MAX) then  -- tokens to come need room above it
    fault = 'horizon, fence: expected an instant and a token, found ' .. text(row.horizon) .. ' and ' .. text(row.fence)
  end
  return row, fault
end

local function read_job(name)
  local read, fault = look_at_job(name)
  if fault then bad('the job ' .. name, fault) end
  return read
end

local function is_barrier(read)
  return read.horizon >= BARRIER_AT and read.suspended == 1 and read.changed_by == BARRIER_BY
end

-- What older versions read of a job.
local function write_barrier(name, read, fence, version, shut)
  local row = {
    job = name, fence = fence, horizon = BARRIER_AT, suspended = shut and 1 or 0, version = version,
    changed_by = BARRIER_BY,
  }
  if write_row(prefix .. 'job:' .. name, COLUMNS.JOB, row, '', read and read.kept) then marks.number('job:' .. name) end
  if not read then redis.call('SADD', prefix .. 'jobs', name) end
end

local function write_standing(row, kept)
  if write_row(prefix .. 'standing:' .. row.job, COLUMNS.STANDING, row, '', kept) then marks.number('job:' .. row.job) end
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
  local row, fault = read_row(prefix .. 'standing:' .. name, COLUMNS.STANDING)
  if fault then bad('the job ' .. name, fault) end
  if not row then return whole(read) end  -- made by an older version, and not swept yet
  row.fence, row.read = read.fence, read
  return row
end

local function put_job(row)
  if identity_from() == NEVER then
    local new = not row.kept
    if write_row(prefix .. 'job:' .. row.job, COLUMNS.JOB, row, '', row.kept) then marks.number('job:' .. row.job) end
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
  local waits = read and read.horizon >= BARRIER_AT and read.suspended == 0
  write_barrier(row.job, read, row.fence, row.version, not waits)
end

local function job_row(name)
  local job = get_job(name)
  if not job then
    job = whole({ job = name, fence = 0, horizon = now, suspended = 0, version = 0, changed_by = '' })
    put_job(job)
    hset(prefix .. 'first-heard', name, exact(now))
    job = get_job(name)
  end
  return job
end

-- Moves the horizon of a job back to now if it is ahead of the clock and settles nothing: true if it was
-- (Standing._moves_back). The caller writes the row.
function OF.moves_back(job)
  if job.horizon <= now or recovering_s() > 0 then return false end
  if job.fence ~= 0 and redis.call('HGET', prefix .. 'first-heard', job.job) ~= exact(job.horizon) then return false end
  job.horizon = now
  hset(prefix .. 'first-heard', job.job, exact(now))
  return true
end

local function keep_barrier(name)
  local read, fault = look_at_job(name)
  if identity_from() == NEVER or not read or fault or is_barrier(read) then return end
  if redis.call('EXISTS', prefix .. 'standing:' .. name) == 0 then write_standing(whole(read), nil) end
  local waits = false
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. name, 0, -1)) do
    local row = look_at_run(run)
    waits = waits or row and row.state == RECEIVED and row.received_at <= identity_from()
  end
  if read.horizon >= BARRIER_AT and waits and read.changed_by == BARRIER_BY then return end
  write_barrier(name, read, read.fence, read.version, not waits)
end

-- From when on the definition was said to count when it was activated. counts_from is earlier where a sweep found it
-- ahead of the clock, and the clock may have been the one that was wrong.
local function was_to_count_from(name)
  local last = redis.call('LINDEX', prefix .. 'activations:' .. name, -1)
  return tonumber(last and string.match(last, '^[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)') or '0')
end

-- ---- holds: what a person has stopped, until an instant or until the person ends it (core/ledger/rows.py).
--
-- The hash drains has those on nodes, the sizes of pools, the plans of backfills and re-runs, the breakers of jobs,
-- checks and the revision in force, so that a sweep reads nothing else;
-- the hash holds has the others. The field is the key. The value is text: "version until at uid", the user, the note, a
-- line each.

local function hold_hash(key)
  local swept = string.sub(key, 1, #OF.NODE) == OF.NODE or string.sub(key, 1, #OF.POOL) == OF.POOL
    or string.sub(key, 1, #BACKFILL.KEY) == BACKFILL.KEY or string.sub(key, 1, #OF.RERUN) == OF.RERUN or key == OF.REVISION
    or string.sub(key, 1, #OF.BREAKER) == OF.BREAKER or string.sub(key, 1, #OF.ISOLATED) == OF.ISOLATED
    or string.sub(key, 1, #OF.CHECK) == OF.CHECK or string.sub(key, 1, #OF.REPORTED) == OF.REPORTED
  return prefix .. (swept and 'drains' or 'holds')
end

local function drop_hold(key)
  if redis.call('HDEL', hold_hash(key), key) == 1 and string.sub(key, 1, #OF.JOB) == OF.JOB then marks.number(key) end
end

local function put_hold(key, version, by, uid, ends, note, since)
  hset(hold_hash(key), key, exact(version) .. ' ' .. exact(ends) .. ' ' .. exact(since) .. ' ' .. exact(uid) .. '\n'
    .. by .. '\n' .. note)
  if string.sub(key, 1, #OF.JOB) == OF.JOB then marks.number(key) end
end

-- The text of a hold, the version that it was written for, and whether it has ended; or nil.
local function look_at_hold(key)
  local kept = redis.call('HGET', hold_hash(key), key)
  if not kept then return nil end
  local version, ends = string.match(kept, '^(%S+) (%S+) %S+ %S+\n')
  ends = tonumber(ends or '') or 0
  return kept, tonumber(version or '') or 0, ends > 0 and ends <= now
end

-- The text of a hold that has not ended, or nil.
local function get_hold(key)
  local kept, _, past_end = look_at_hold(key)
  if past_end then
    drop_hold(key)
    return nil
  end
  return kept
end

-- Who holds a key, and the note; "" if nobody does.
local function hold_says(key) return string.match(get_hold(key) or '\n\n', '^[^\n]*\n([^\n]*)\n(.*)$') end

-- The number of the published revision that is in force, and its digest; 0 without any (core/ledger/revision/text.py).
function OF.revision_in_force()
  local _, note = hold_says(OF.REVISION)
  local number, digest = string.match(note, '^(%d+) (.+)$')
  return tonumber(number or '0'), digest
end

-- The text of the hold of a suspended job, and whether it has ended; nil where an older version suspended it.
local function hold_of(job)
  local kept, version, past_end = look_at_hold(OF.JOB .. job.job)
  if kept and version == job.version then return kept, past_end end
  return nil
end

local function is_suspended(job)
  if job.suspended ~= 1 then return false end
  local _, past_end = hold_of(job)
  if not past_end then return true end
  job.suspended, job.version = 0, job.version + 1
  drop_hold(OF.JOB .. job.job)
  put_job(job)
  return false
end

local function nothing_starts(job) return is_suspended(job) or get_hold(ALL) ~= nil end

-- The runs that are past their gate ahead of their fire time, of one job or of all (nil): a hold comes too late for them.
local function begun_runs(job)
  local found = {}
  local soon = redis.call('ZRANGEBYSCORE', prefix .. 'open', '(' .. exact(now), exact(now + GATE_AHEAD_S),
    'LIMIT', 0, OPEN_PAGE)
  for _, run in ipairs(soon) do
    local row, fault = look_at_run(run)
    if row and not fault and row.state == STARTED and (not job or row.job == job) and #found < BEGUN_MAX then
      found[#found + 1] = run
    end
  end
  return table.concat(found, ' ')
end

-- ---- the plan of a backfill: the note of the hold backfill:JOB (core/ledger/backfill/plan.py says what each word is)

-- The plan of a job, with who made it and when; or nil. A damaged one opens nothing.
function BACKFILL.get(job)
  local _, at, uid, by, note = string.match(get_hold(BACKFILL.KEY .. job) or '', '^%S+ (%S+) (%S+) (%S+)\n([^\n]*)\n(.*)$')
  local said = {}
  for word in string.gmatch(note or '', '%S+') do said[#said + 1] = word end
  local plan = {
    by = by, uid = tonumber(uid or ''), since = tonumber(at or ''), id = said[1], state = said[2],
    begin = tonumber(said[3] or ''), ends = tonumber(said[4] or ''), order = said[5], at_most = tonumber(said[6] or ''),
    redo = said[7], stop_after = tonumber(said[8] or ''), ended_at = tonumber(said[9] or ''),
    cursor = tonumber(said[10] or ''), opened = tonumber(said[11] or ''), succeeded = tonumber(said[12] or ''),
    failed = tonumber(said[13] or ''), open = {},
  }
  if not (#said == 14 and plan.begin and plan.ends and plan.at_most and plan.stop_after and plan.ended_at
    and plan.cursor and plan.opened and plan.succeeded and plan.failed) then return nil end
  if said[14] ~= BACKFILL.NOTHING then
    for run in string.gmatch(said[14], '[^,]+') do plan.open[#plan.open + 1] = run end
  end
  return plan
end

function BACKFILL.put(job, plan)
  local function at(instant) return string.format('%.3f', instant) end
  local note = table.concat({
    plan.id, plan.state, at(plan.begin), at(plan.ends), plan.order, exact(plan.at_most), plan.redo,
    exact(plan.stop_after), at(plan.ended_at), at(plan.cursor), exact(plan.opened), exact(plan.succeeded),
    exact(plan.failed), plan.open[1] and table.concat(plan.open, ',') or BACKFILL.NOTHING,
  }, ' ')
  local kept_to = plan.ended_at > 0 and now + BACKFILL.KEPT_S or 0
  put_hold(BACKFILL.KEY .. job, 0, plan.by, plan.uid, kept_to, note, plan.since)
end

function BACKFILL.finish(job, plan, state)
  plan.state, plan.ended_at = state, now
  BACKFILL.put(job, plan)
end

-- ---- the definitions of a job that the ledger remembers, and when it fired last

local function last_fire_at(job)
  -- What lies ahead settles nothing that is still to come, and a damaged row must not put the job off for ever.
  local before = exact(math.min(now + CLAIM_AHEAD_S, INSTANT_MAX))
  local found = redis.call('ZREVRANGEBYSCORE', prefix .. 'fired:' .. job, before, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(found[2] or '0')
end

-- True if a job without a definition had a schedule.
function OF.was_scheduled(job) return last_fire_at(job.job) > 0 or job.horizon < identity_from() end

local function was_activated(name, digest)
  for _, kept in ipairs(redis.call('LRANGE', prefix .. 'activations:' .. name, 0, -1)) do
    if string.match(kept, '^[^\n]*\n([^\n]*)\n') == digest then return true end
  end
  return false
end

local function remembers_none(name) return redis.call('EXISTS', prefix .. 'activations:' .. name) == 0 end

-- sequence, digest, digest of the schedule, when, from when it counts, by whom: a line each.
local function put_activation(job, by)
  local key = prefix .. 'activations:' .. job.job
  local lines = { exact(job.sequence), job.digest, job.schedule, exact(job.activated_at), exact(job.counts_from), by }
  redis.call('RPUSH', key, table.concat(lines, '\n'))
  redis.call('LTRIM', key, -ACTIVATIONS_MAX, -1)
end
