-- restore: a witness puts back what a ledger that went back has forgotten.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   registration      11 values; shared/registrations.lua
--   attempt           number; from 0
--   token             number; the fencing token of the grant
--   nonce             text; the claimant's own random text
--   node              text; the holder
--   lease_s           seconds; the lease that it gets
--   state             text; received, started, or how the attempt ended
--   exit_code         number, or "" for none
--   reason            text
--   application_id    text; "": not known
--   final             1 or 0; a failure that is not tried again
-- Answers:
--   ok                left_s, state; it stands there, or did
--   stale             state; there is no quarantine, or the ledger knows better
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs registrations grants moves breakers endings

-- The same policy for a run that nobody may try again before a person has looked at it (Policy.held).
local AT_REST = { on_lost = 'hold', attempts = '1', relaunches = '0' }

local function held_policy(policy)
  local n = 0
  local packed = string.gsub(policy.packed, '%S+', function(word)
    n = n + 1
    return POLICY[n] and AT_REST[POLICY[n].name] or word
  end)
  return unpack_policy(packed)
end

local of = take_registration()
local attempt, token, nonce, node, lease_s = take_number(), take_number(), take(), take(), take_number()
local state, exit_code, reason, application_id, final = take(), take(), take(), take(), take() == '1'
local row = get_run(of.run)
-- An attempt that was launched comes before one that perhaps was not, also under an older token (Life._replaces).
local past = get_attempt(of.run, attempt)
local same = row and row.attempt == attempt and row.token == token and row.nonce == nonce
local known = past and past.token == token and past.nonce == nonce
-- A launched attempt whose end nobody knows, of a job that holds such runs (Life._is_held).
local holds = (state == STARTED or state == LOST) and of.policy.on_lost == 'hold'
local replaces = row and is_older(row, token)
if row and row.state == RECEIVED and state ~= RECEIVED and row.attempt <= attempt then
  replaces = not same
elseif row and row.state == RETRY and state ~= RECEIVED and state ~= LOST and not known then
  replaces = true
elseif row and row.state == RETRY and not past and holds then
  replaces = true
elseif row and (state == RECEIVED or state == LOST) then
  local runs = row.state == STARTED or row.state == UNKNOWN
  if (runs and attempt <= row.attempt) or (row.state == RETRY and past and not known) then replaces = false end
end
local forgotten = OF.has_forgotten(row, of.run, attempt, token)
if short and forgotten then lengthen() end
if marks.whole_s() <= 0 then return answer(STALE) end
if forgotten then marks.show_loss(token) end
local job = job_row(of.job)
if token > job.fence then
  job.fence = token
  put_job(job)
end
if not row or replaces then
  row = row or new_row(of)
  row.digest, row.args = of.digest, of.args
  local policy = row.state == UNKNOWN and held_policy(of.policy) or of.policy
  if HOLDING[row.state] and row.attempt < attempt then close_attempt(row, LOST) end
  local tries = math.max(0, attempt - row.failures - row.relaunches)
  local failures = math.min(tries, math.max(0, policy.attempts - 1 - row.failures))
  row.failures = row.failures + failures
  row.relaunches = row.relaunches + tries - failures
  row.state = state == RECEIVED and RECEIVED or STARTED
  row.attempt, row.token, row.nonce, row.node = attempt, token, nonce, node
  row.lease, row['until'], row.boot, row.beat = lease_s, now + lease_s, '', 0
  row.policy = policy.packed
  row.received_at, row.started_at, row.ended_at = now, state == RECEIVED and 0 or now, 0
  row.exit_code, row.application_id = '', application_id
  if row.cancel == 0 then row.reason = '' end
  put_run(row)
  record(row)
  started(row, of.policy.limits or '')
elseif not same then
  if not past then  -- its number is not given again
    put_attempt({
      run = of.run, attempt = attempt, token = token, nonce = nonce, node = node,
      state = REPORTED[state] and state or LOST, received_at = now, started_at = now, ended_at = now,
      exit_code = exit_code, application_id = application_id, reason = reason,
    })
    if row.state == RETRY then
      row.attempt = unused(row.run, row.attempt)
      put_run(row)
    elseif HOLDING[row.state] and holds then
      row.policy = held_policy(unpack_policy(row.policy)).packed
      put_run(row)
    end
  end
  return answer(known and OK or STALE, { state = row.state })
elseif row.state == RECEIVED and state ~= RECEIVED then
  move(row, STARTED)
  row.started_at, row['until'], row.boot, row.beat = now, now + lease_s, '', row.beat + 1
  put_run(row)
  record(row)
end
if REPORTED[state] and HOLDING[row.state] then
  report(of.run, attempt, token, nonce, state, exit_code, reason, application_id, final)
  row = get_run(of.run)
end
return answer(OK, { left_s = HOLDING[row.state] and left(row) or 0, state = row.state })
