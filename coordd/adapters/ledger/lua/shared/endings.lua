-- How attempts end: lost ones (core/ledger/steps.py), and the end that a holder or a witness tells.

-- Seconds before the next attempt. From the run's second loss on there is a pause, if the lost one was short-lived.
local function pause(row)
  if row.relaunches < 2 or now - row.received_at >= SHORT_LIVED_S then return 0 end
  return RELAUNCH_PAUSE_S * 2 ^ math.min(row.relaunches - 2, RELAUNCH_DOUBLINGS_MAX)
end

local function relaunch(row, policy, reason)
  if row.cancel == 1 then
    finish(row, REVOKED, row.reason)
  elseif row.relaunches > policy.relaunches then
    finish(row, LOST, string.format('%s; lost %.0f times, no relaunch left', reason, row.relaunches))
  else
    again(row, LOST, pause(row), reason)
  end
end

-- A launched attempt whose end nobody knows: lost and tried again, or unknown and held for a person.
local function lose(row, reason)
  local policy = unpack_policy(row.policy)
  if policy.on_lost == 'hold' and row.state ~= RECEIVED then
    if row.state ~= UNKNOWN then
      move(row, UNKNOWN)
      if row.cancel == 0 then
        row.reason = reason
      elseif not string.find(row.reason, reason, 1, true) then
        row.reason = reason .. '; ' .. row.reason
      end
      put_run(row)
      record(row)
      BREAKER.unknown(row)
    end
    return
  end
  row.relaunches = row.relaunches + 1
  relaunch(row, policy, reason)
end

-- A started attempt that nobody holds any more.
local function lease_lost(row)
  local reason = 'its lease lapsed; last held by ' .. row.node
  local was = ended_as(row, reason)
  lose(row, reason)
  if row.state == RETRY then
    return answer(LOST, { attempt = row.attempt, in_s = due_in(row), ended = was })
  end
  if TERMINAL[row.state] then return answer(FINISHED, { state = row.state, attempt = row.attempt, ended = was }) end
  return held(row)
end

-- ---- reports

-- A report was taken; as long as a quarantine lasts the ledger may go back once more.
local function taken() return answer(OK, { left_s = marks.whole_s() }) end

-- The end of an attempt.
local function report(run, attempt, token, nonce, state, exit_code, reason, application_id, final)
  local row = mine(run, attempt, token, nonce)
  if not row or not HOLDING[row.state] then
    local past = get_attempt(run, attempt)
    if past and past.token == token and past.nonce == nonce and REPORTED[state][past.state] then return taken() end
    return not_mine(run, attempt, token, STALE)
  end
  -- It was past the gate, or may have been: a ledger that went back has forgotten it.
  if row.state == RECEIVED and (state == SUCCESS or state == FAILURE or state == LOST and marks.whole_s() > 0)
  then
    move(row, STARTED)
  end
  if application_id ~= '' then row.application_id = application_id end
  row.exit_code = exit_code
  local policy = unpack_policy(row.policy)
  if state == FAILURE then
    row.failures = row.failures + 1
    if not final and row.cancel == 0 and row.failures < policy.attempts then
      again(row, FAILURE, retry_after(policy, row), reason)
      return taken()
    end
  elseif state == LOST then
    lose(row, reason)
    return taken()
  elseif state == RETRY then
    row.relaunches = row.relaunches + 1
    relaunch(row, policy, reason)
    return taken()
  end
  if state == REVOKED and row.cancel == 1 and row.reason ~= '' then reason = row.reason end
  finish(row, state, reason)
  return taken()
end
