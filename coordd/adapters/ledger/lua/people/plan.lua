-- plan: begin the backfill of a job, or cancel the one that runs.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   job               text; its name
--   text              text; the plan (core/ledger/backfill/plan.py); "": cancel it
--   by                text; who asks
--   uid               number; the same person
-- Answers:
--   ok                by; it is as asked. by: with a plan cancelled, its id
--   conflict          by; the id of the plan that runs
--   finished          ; no plan runs
--
-- When the memory is full: passes
-- Needs: rows runs jobs

local job, said, by, uid = take(), take(), take(), take_number()
local plan = BACKFILL.get(job)
local runs = plan and plan.state == BACKFILL.RUNNING
if said == '' then
  if not runs then return answer(FINISHED) end
  BACKFILL.finish(job, plan, BACKFILL.CANCELLED)
  return answer(OK, { by = plan.id })
end
if runs then return answer(CONFLICT, { by = plan.id }) end
put_hold(BACKFILL.KEY .. job, 0, by, uid, 0, said, now)
return answer(OK)
