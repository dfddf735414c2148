-- cancel: end an attempt that runs; its holder hears of it with the next renewal at the latest.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   by                text; who asks
-- Answers:
--   ok                state, by, attempt; by: the node that holds it
--   finished          state; it is over, or not known
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs moves breakers

local run, by = take(), take()
local row = get_run(run)
if not row or TERMINAL[row.state] then return answer(FINISHED, { state = row and row.state or '' }) end
if row.state == PENDING or row.state == RETRY then
  finish(row, REVOKED, 'cancelled by ' .. by)
  return answer(OK, { state = REVOKED })
end
if row.state ~= UNKNOWN then
  row.reason = 'cancelled by ' .. by
elseif row.cancel == 0 then
  row.reason = row.reason .. '; cancelled by ' .. by
end
row.cancel = 1
put_run(row)
return answer(OK, { state = row.state, by = row.node, attempt = row.attempt })
