-- discard: a person needs nothing more of a run that was given up (a dead letter).
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   attempt           number; the one with which it was given up
--   by                text; who asks
--   note              text; why
-- Answers:
--   ok                state
--   finished          state; it is not a dead letter (any more)
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs moves

local run, attempt, by, note = take(), take_number(), take(), take()
local row = get_run(run)
if not row or row.attempt ~= attempt or not is_dead_letter(row) then
  return answer(FINISHED, { state = row and row.state or '' })
end
row.cancel = 1
row.reason = row.reason .. '; discarded by ' .. by .. ': ' .. note
put_run(row)
return answer(OK, { state = row.state })
