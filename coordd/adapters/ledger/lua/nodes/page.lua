-- page: the next page of a sweep: what comes after a row, whether or not that is still there.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   limit             number; rows on a page
--   not_before        text; Unix seconds, as the row has it
--   run               text; its id
-- Answers:
--   open              now, recovering_s, jobs, runs, after, identity_from, holds, cursor, gone, more; in this order,
--                     without their names (shared/pages.lua says more); no jobs, no holds, no cursor
--
-- When the memory is full: refused
-- Needs: rows runs jobs pages

local limit, not_before, run = take_number(), take(), take()
-- How many rows stand up to that one, which may have ended since: first those that are due sooner, then among equals.
local from = redis.call('ZCOUNT', prefix .. 'open', '-inf', '(' .. not_before)
local to = redis.call('ZCOUNT', prefix .. 'open', '-inf', not_before)
while from < to do
  local middle = math.floor((from + to) / 2)
  if precedes(run, redis.call('ZRANGE', prefix .. 'open', middle, middle)[1]) then
    to = middle
  else
    from = middle + 1
  end
end
return open_page({}, from, limit, {})
