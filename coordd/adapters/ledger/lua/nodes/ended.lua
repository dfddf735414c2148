-- ended: the runs of some jobs that have ended since an instant, oldest first.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   limit             number; ended runs that are looked at, of all jobs
--   since             Unix seconds; those that ended then, or later
--   jobs...           text; their names
-- Answers:
--   open              now, recovering_s, jobs, runs, after, identity_from, holds, cursor, gone, more; in this order,
--                     without their names (shared/pages.lua says more); no jobs, no holds, no cursor. after: the end of the
--                     last one, if there are more
--
-- When the memory is full: refused
-- Needs: rows runs jobs pages

local limit, since, wanted = take_number(), take_number(), {}
for i = at + 1, #ARGV do wanted[ARGV[i]] = true end
local found = redis.call('ZRANGEBYSCORE', prefix .. 'ended', exact(since), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local names, after = {}, {}
for i = 1, #found, 2 do
  if wanted[string.match(found[i], '^[^#@]*')] then names[#names + 1] = found[i] end
end
if #found == 2 * limit then after = { found[#found], found[#found - 1] } end
return told_page({}, names, after, {})
