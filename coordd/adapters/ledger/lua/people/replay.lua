-- replay: one more attempt of a run that was given up (a dead letter), or of any that has ended.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   attempt           number; the one with which it was given up
--   digest            text; the definition that its next attempt executes
--   policy            text; the words of that definition's policy
--   by                text; who asks
--   children          text; the runs that run once more after it (core/ledger/rerun/plan.py); "": none
--   whole              1: it may have ended in any way but a person's revocation, and has all its tries before it
-- Answers:
--   ok                state, attempt; the next one is due now
--   exists            state, by, attempt; it was replayed before. by: the reason in the record, which names who
--   finished          state; it is not a dead letter; whole: it has not ended, or is revoked
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs moves

local run, attempt, digest, packed, by, children = take(), take_number(), take(), take(), take(), take()
local over = take_number() == 1
if recovering_s() > 0 then return recovering() end
local row = get_run(run)
if row and row.attempt > attempt then
  local reason = redis.call('HGET', prefix .. 'attempts:' .. run, exact(attempt) .. ':reason')
  return answer(EXISTS, { state = row.state, by = reason or '', attempt = row.attempt })
end
local fits = row and is_dead_letter(row)
if row and over then fits = TERMINAL[row.state] and row.state ~= REVOKED end
if not fits or row.attempt ~= attempt then return answer(FINISHED, { state = row and row.state or '' }) end
row.reason = (row.reason == '' and '' or row.reason .. '; ') .. 'replayed by ' .. by .. (over and ' (run rerun)' or '')
record(row)
row.digest, row.policy = digest, packed
if over then
  row.failures, row.relaunches, row.cancel, row.commit_token = 0, 0, 0, 0
  local opened, earlier = '', string.find(row.by, OF.RERUN_OF, 1, true)
  if string.sub(row.by, 1, #OF.OPENED) == OF.OPENED then
    opened = string.sub(row.by, 1, (earlier or 0) - 1) .. '; '
  end
  row.by = opened .. OF.REPEATED .. run .. '/' .. exact(row.attempt) .. ' by ' .. by
else
  row.failures = math.max(row.failures, unpack_policy(packed).attempts - 1)
end
row.state, row.attempt, row.not_before = RETRY, unused(run, row.attempt + 1), math.max(due_at(row), now)
put_run(row)
if children ~= '' then
  put_hold(OF.RERUN .. run, row.attempt, by, 0, now + OF.CHILDREN_KEPT_S, children, now)
else
  drop_hold(OF.RERUN .. run)
end
return answer(OK, { state = RETRY, attempt = row.attempt })
