-- close: answer nobody from now on, because the rows go elsewhere.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   force             1 or 0; also where attempts hold leases, which nobody can renew or report then
--   by                text; who asks
-- Answers:
--   ok                ; it is closed
--   held              by; attempts hold leases: of these runs
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--
-- When the memory is full: passes
-- Needs: nothing

local force, by = take() == '1', take()
if not force then
  if recovering_s() > 0 then return recovering() end
  local held_runs = {}
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'open', 0, -1)) do
    local state = redis.call('HGET', prefix .. 'run:' .. run, 'state')
    if state == RECEIVED or state == STARTED then held_runs[#held_runs + 1] = run end
  end
  if held_runs[1] then
    table.sort(held_runs)
    local more = #held_runs > NAMED_MAX and string.format(' and %d more', #held_runs - NAMED_MAX) or ''
    return answer(HELD, { by = table.concat(held_runs, ', ', 1, math.min(NAMED_MAX, #held_runs)) .. more })
  end
end
-- Versions that know of no closing refuse a schema that is not theirs.
hset(prefix .. 'meta', 'closed', string.format('by %s at %.0f', by, now), 'schema', '0')
return answer(OK)
