-- revoke: forbid a run that has not started, known or not yet. A bad row is replaced by one that says so.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   by                text; who asks
--   registration      11 values; shared/registrations.lua. Of a run that nobody has heard of: what its name says
-- Answers:
--   ok                state; it is revoked
--   finished          state; it has started, or is over
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs registrations moves breakers

-- A run whose row cannot be believed: it is taken out of everything that it may stand in.
local function drop_bad_run(run)
  local job = string.match(run, '^([^#@]*)')
  redis.call('DEL', prefix .. 'run:' .. run, prefix .. 'attempts:' .. run)
  for _, key in ipairs({ 'ended', 'open', 'active:' .. job, 'waiting:' .. job, 'fired:' .. job, 'list::', 'list::' .. job }) do
    redis.call('ZREM', prefix .. key, run)
  end
  for state in pairs(STATES) do
    local all, of_job = list_keys(job, state)
    redis.call('ZREM', all, run)
    redis.call('ZREM', of_job, run)
  end
end

local run, by = take(), take()
local of = take_registration()
local why = 'revoked by ' .. by
local row, fault = look_at_run(run)
if fault then  -- the way out of it for people, whatever state it was in
  why = why .. '; the row of ' .. run .. ' is bad: ' .. fault
  drop_bad_run(run)
  row = nil
end
if not row and not fault and of.scheduled == 1 and is_over(of.job, of.due) then
  return answer(FINISHED, { state = SETTLED })
end
if not row then passes = false end  -- a new row
row = row or new_row(of)
if TERMINAL[row.state] or row.state == STARTED or row.state == UNKNOWN then
  return answer(FINISHED, { state = row.state })
end
finish(row, REVOKED, why)
return answer(OK, { state = REVOKED })
