-- The end of an attempt, as its holder or a witness tells it.

-- A report was taken; as long as a quarantine lasts the ledger may go back once more.
local function taken() return answer(OK, { left_s = recovering_s() }) end

-- The end of an attempt.
local function report(run, attempt, token, nonce, state, exit_code, reason, application_id, final)
  local row = mine(run, attempt, token, nonce)
  if not row or not HOLDING[row.state] then
    local past = get_attempt(run, attempt)
    if past and past.token == token and past.nonce == nonce and REPORTED[state][past.state] then return taken() end
    return not_mine(run, token, STALE)
  end
  -- It was past the gate, or may have been: a ledger that went back has forgotten it.
  if row.state == RECEIVED and (state == SUCCESS or state == FAILURE or state == LOST and recovering_s() > 0)
  then
    move(row, STARTED)
  end
  if application_id ~= '' then row.application_id = application_id end
  row.exit_code = exit_code
  local policy = unpack_policy(row.policy)
  if state == FAILURE then
    row.failures = row.failures + 1
    if not final and row.cancel == 0 and row.failures < policy.attempts then
      again(row, FAILURE, delay_after(policy, row.failures), reason)
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
