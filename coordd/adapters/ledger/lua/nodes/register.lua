-- register: write the row of a triggered run, before its trigger is answered.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   registration      11 values; shared/registrations.lua
-- Answers:
--   ok                state; the row is there, and pending
--   exists            state; it was there before, or its time is settled
--   conflict          state; it is there with another definition, or other arguments
--   early             state, in_s; a scheduled run that lies too far ahead
--   outdated          state, in_s; the caller goes by other rules than those in force
--   differs           state, in_s; another definition of the job counts
--   finished          state, in_s; due before the definition counts
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires registrations

local of = take_registration()
local row = get_run(of.run)
if not row then
  if of.scheduled == 1 and settled(of.job, of.due) then return answer(EXISTS, { state = SETTLED }) end
  local job = job_row(of.job)
  local word, in_s = refused(job, of)
  if word then return answer(word, { state = word == FINISHED and SETTLED or '', in_s = in_s or 0 }) end
  row = new_row(of)
  if is_given_up(job, row, of) then return answer(EXISTS, { state = SETTLED }) end
  put_run(row)
  return answer(OK, { state = PENDING })
end
local known = row.digest ~= '' or row.state ~= REVOKED
if known and (row.digest ~= of.digest or row.args ~= of.args) then return answer(CONFLICT, { state = row.state }) end
return answer(EXISTS, { state = row.state })
