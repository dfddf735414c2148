-- The policy that a run's row has, and what it says of being late.

local function unpack_policy(packed)
  local words = {}
  for word in string.gmatch(packed, '%S+') do words[#words + 1] = word end
  return {
    packed = packed, on_lost = words[1], overlap = words[2], attempts = tonumber(words[3]),
    relaunches = tonumber(words[4]), delay_s = tonumber(words[5]), backoff = words[6],
    start_within_s = tonumber(words[7]),
  }
end

-- Later than its start_within, by the row's own policy.
local function is_overdue(row) return now > row.not_before + unpack_policy(row.policy).start_within_s end
