-- The policy that a run's row has, and what it says of pauses and of being late.

local function unpack_policy(packed)
  local policy, n = { packed = packed }, 0
  for word in string.gmatch(packed, '%S+') do
    n = n + 1
    local of = POLICY[n]
    if of then policy[of.name] = of.most and tonumber(word) or word end
  end
  return policy
end

local function delay_after(policy, failures)
  if policy.backoff == 'linear' then return policy.delay_s * failures end
  if policy.backoff == 'exponential' then
    return math.min(policy.delay_s * 2 ^ math.min(failures - 1, BACKOFF_DOUBLINGS_MAX), BACKOFF_MAX_S)
  end
  return policy.delay_s
end

-- By which part of itself a delay may grow, 0 to 1.
local function jitter(policy)
  for item in string.gmatch(policy.limits or '', '[^,]+') do
    local said = string.match(item, '^jitter=(%d+)$')
    if said then return math.min(tonumber(said), LIMIT.JITTER_MAX) / 1000 end
  end
  return 0
end

-- Seconds before the next try of a row whose attempt has failed: the jitter's share is a hash of run and attempt.
local function retry_after(policy, row)
  local hashed = tonumber(string.sub(redis.sha1hex(row.run .. '/' .. exact(row.attempt)), 1, 8), 16) / 2 ^ 32
  return delay_after(policy, row.failures) * (1 + jitter(policy) * hashed)
end

-- The longest possible pause (seconds) between two attempts.
local function longest_pause(policy)
  local longest = delay_after(policy, math.max(1, policy.attempts - 1)) * (1 + jitter(policy))
  return math.max(longest, RELAUNCH_PAUSE_S * 2 ^ RELAUNCH_DOUBLINGS_MAX)
end

-- Seconds until it may start: it waits for its fire time, and for the pause before a further attempt. Further ahead than
-- that: the clock was ahead when it was written, and only the fire time counts.
local function due_in(row)
  local ahead_s = row.not_before - now
  if ahead_s <= 0 then return 0 end
  local fires_in_s = row.scheduled == 1 and math.max(0, due_at(row) - now) or 0
  local pause_s = row.attempt > 0 and longest_pause(unpack_policy(row.policy)) or 0
  return ahead_s <= math.max(fires_in_s, pause_s) + CLOCK_EXACT_S and ahead_s or fires_in_s
end

-- Later than its start_within, by the row's own policy.
local function is_overdue(row) return now > row.not_before + unpack_policy(row.policy).start_within_s end
