-- resolve: a person says what became of an unknown run.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   outcome           text; success, failed or relaunch
--   by                text; who says so
-- Answers:
--   ok                state; what it is now
--   finished          state; it was not unknown
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs moves breakers

local run, outcome, by = take(), take(), take()
local row = get_run(run)
if not row or row.state ~= UNKNOWN then return answer(FINISHED, { state = row and row.state or '' }) end
local why = 'resolved as ' .. outcome .. ' by ' .. by
if row.reason ~= '' then why = why .. '; its own end is not known, because ' .. row.reason end
if outcome == 'relaunch' then
  row.cancel = 0
  again(row, LOST, 0, why)
else
  finish(row, outcome == SUCCESS and SUCCESS or FAILURE, why)
end
return answer(OK, { state = row.state })
