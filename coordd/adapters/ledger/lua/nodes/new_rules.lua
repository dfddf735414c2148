-- new_rules: no member speaks the old rules any more; from now on the new ones are in force.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   known             Unix seconds; where they began when the caller saw them last, below 0 when it never did
-- Answers:
--   ok                in_s; until they begin
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--
-- When the memory is full: refused
-- Needs: rows runs jobs

local known = take_number()
if recovering_s() > 0 then return recovering() end
if identity_from() ~= NEVER then return answer(OK) end
local begin = known >= 0 and known or now + IDENTITY_AHEAD_S
hset(prefix .. 'meta', 'rules', NEW_RULES, 'identity_from', exact(begin))
begun = begin
for _, name in ipairs(redis.call('SMEMBERS', prefix .. 'jobs')) do keep_barrier(name) end
return answer(OK, { in_s = math.max(0, begin - now) })
