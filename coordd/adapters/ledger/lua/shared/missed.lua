-- Runs that nobody launched in time (core/ledger/rules.py), and what held them up (core/ledger/fires.py).

local function was_held_up(row)
  local sound, job = pcall(get_job, row.job)  -- the run ends, also if the row of its job is bad
  if sound and job and nothing_starts(job) then return HELD_BY_SUSPENSION end
  local overlap = unpack_policy(row.policy).overlap
  if row.attempt == 0 and (overlap == 'queue' or overlap == 'replace') then
    for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. row.job, 0, -1)) do
      if run ~= row.run and get_run(run) then return HELD_BY_OTHERS .. run end
    end
  end
  return ''
end

-- ``digest`` is the definition of the node that says so.
local function missed(row, digest)
  local why = string.format('no node could launch it within %g s of its time (%.0f s late)',
    unpack_policy(row.policy).start_within_s, now - row.not_before)
  if row.digest ~= digest then why = why .. "; the job's definition has changed since" end
  finish(row, MISSED, why .. was_held_up(row))
  return ended(row)
end
