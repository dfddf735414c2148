-- replay: one more attempt of a run that was given up (a dead letter).
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   attempt           number; the one with which it was given up
--   digest            text; the definition that its next attempt executes
--   policy            text; the words of that definition's policy
--   by                text; who asks
--   children          text; the runs that run once more after it (core/ledger/rerun/plan.py); "": none
-- Answers:
--   ok                state, attempt; the next one is due now
--   exists            state, by, attempt; it was replayed before. by: the reason in the record, which names who
--   finished          state; it is not a dead letter
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs moves

local run, attempt, digest, packed, by, children = take(), take_number(), take(), take(), take(), take()
if recovering_s() > 0 then return recovering() end
local row = get_run(run)
if row and row.attempt > attempt then
  local reason = redis.call('HGET', prefix .. 'attempts:' .. run, exact(attempt) .. ':reason')
  return answer(EXISTS, { state = row.state, by = reason or '', attempt = row.attempt })
end
if not row or row.attempt ~= attempt or not is_dead_letter(row) then
  return answer(FINISHED, { state = row and row.state or '' })
end
row.reason = row.reason .. '; replayed by ' .. by
record(row)
row.digest, row.policy = digest, packed
row.failures = math.max(row.failures, unpack_policy(packed).attempts - 1)
row.state, row.attempt, row.not_before = RETRY, unused(run, row.attempt + 1), math.max(due_at(row), now)
put_run(row)
if children ~= '' then
  put_hold(OF.RERUN .. run, row.attempt, by, 0, now + OF.CHILDREN_KEPT_S, children, now)
else
  drop_hold(OF.RERUN .. run)
end
return answer(OK, { state = RETRY, attempt = row.attempt })
