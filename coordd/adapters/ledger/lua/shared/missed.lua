-- Runs that nobody launched in time (core/ledger/rules.py), and what held them up (core/ledger/fires.py).

-- Which limit stops the run now, and for how long nobody need ask again; or nil (core/ledger/limits/rule.py).
local function stopped_by(row, limits)
  local function limit_name(key)
    return string.sub(key, 1, #LIMIT.POOL) == LIMIT.POOL and 'pool ' .. string.sub(key, #LIMIT.POOL + 1) or 'concurrency'
  end

  -- How many slots there are: as the claim says, or, for a pool, as a person says.
  local function size_of(key, said)
    local kept = string.sub(key, 1, #LIMIT.POOL) == LIMIT.POOL and get_hold(OF.POOL .. string.sub(key, #LIMIT.POOL + 1))
    return tonumber(kept and string.match(kept, '^[^\n]*\n[^\n]*\n(%d+)$') or said)
  end

  for key, said in string.gmatch(limits, 'slots:([^=,]+)=(%d+)') do
    local size, slots = size_of(key, said), prefix .. 'slots:' .. key
    local taken = redis.call('ZCARD', slots)
    if redis.call('ZSCORE', slots, row.run) then taken = taken - 1 end
    if taken >= size then
      return limit_name(key) .. ': ' .. exact(taken) .. ' of ' .. exact(size) .. ' run', LIMIT.RETRY_S
    end
  end
  local due = math.max(now, row.not_before)
  for key, said, period in string.gmatch(limits, 'rate:([^=,]+)=(%d+)/(%d+)') do
    local count, since = tonumber(said), due - tonumber(period)
    local starts = redis.call('ZRANGEBYSCORE', prefix .. 'starts:' .. key, '(' .. exact(since), '+inf', 'WITHSCORES')
    local found = #starts / 2
    if found >= count then
      local in_s = count > 0 and tonumber(starts[2 * (found - count + 1)]) - since or LIMIT.RETRY_S
      return 'rate: ' .. exact(found) .. ' started within ' .. period .. ' s', math.max(in_s, 0)
    end
  end
end

local function was_held_up(row)
  local sound, job = pcall(get_job, row.job)  -- the run ends, also if the row of its job is bad
  if sound and job and nothing_starts(job) then return FIRES.HELD_BY_SUSPENSION end
  local overlap = unpack_policy(row.policy).overlap
  if row.attempt == 0 and overlap ~= 'allow' then
    for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. row.job, 0, -1)) do
      local other = run ~= row.run and get_run(run)
      if other and (overlap == 'queue' or overlap == 'replace' or BACKFILL.opened(other)) then return FIRES.HELD_BY_OTHERS .. run end
    end
  end
  local why = stopped_by(row, unpack_policy(row.policy).limits or '')
  return why and FIRES.HELD_BY_OTHERS .. why or ''
end

-- ``digest`` is the definition of the node that says so.
local function missed(row, digest)
  if string.sub(row.by, 1, #OF.ABSENT) == OF.ABSENT then  -- its parents did not all come: this says which
    finish(row, MISSED, row.by)
    return ended(row)
  end
  local why = string.format('no node could launch it within %g s of its time (%.0f s late)',
    unpack_policy(row.policy).start_within_s, now - row.not_before)
  if row.digest ~= digest then why = why .. "; the job's definition has changed since" end
  finish(row, MISSED, why .. was_held_up(row))
  return ended(row)
end
