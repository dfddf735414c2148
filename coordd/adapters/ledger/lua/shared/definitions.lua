-- The definitions of a job that the ledger remembers, and when it fired last.

local function last_fire_at(job)
  -- What lies ahead settles nothing that is still to come, and a damaged row must not put the job off for ever.
  local before = exact(math.min(now + CLAIM_AHEAD_S, INSTANT_MAX))
  local found = redis.call('ZREVRANGEBYSCORE', prefix .. 'fired:' .. job, before, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(found[2] or '0')
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
