-- gate: the last word before a launch: received becomes started. The same grant may ask again.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   attempt           number; from 0
--   token             number; the fencing token of the grant
--   nonce             text; the claimant's own random text
--   ahead_s           seconds or nothing; the caller can wait for this long by itself. An older version does not say it
-- Answers:
--   ok                left_s, in_s, replicas; go, in that time. replicas: how many there are, if on_lost is hold; one must
--                     confirm it first
--   revoked           ; it was cancelled, or revoked
--   stale             ; the grant is not the current one any more, or its lease is over
--   early             in_s; not yet: its time, a quarantine, or a suspended job
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs grants moves breakers

local run, attempt, token, nonce, ahead_s = take(), take_number(), take_number(), take(), tonumber(take() or '') or 0
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, attempt, token, STALE) end
if row.cancel == 1 then
  if row.state == RECEIVED then
    finish(row, REVOKED, row.reason ~= '' and row.reason or 'cancelled before it started')
  end
  return answer(REVOKED)
end
-- A job with on_lost = hold runs on without a lease: if there are replicas, the caller WAITs until one has its start.
local function open_gate()
  local fields = { left_s = left(row), in_s = due_in(row) }
  if replicas > 0 and unpack_policy(row.policy).on_lost == 'hold' then fields.replicas = replicas end
  return answer(OK, fields)
end
if row.state ~= RECEIVED and row.state ~= STARTED then
  return answer(row.state == REVOKED and REVOKED or STALE)
end
-- Also where a witness put it back as started: it only knew of the grant.
if due_in(row) > math.max(0, math.min(GATE_AHEAD_S, ahead_s)) then return answer(EARLY, { in_s = due_in(row) }) end
if row.state == RECEIVED and now >= row['until'] then return answer(STALE) end
if recovering_s() > 0 then return answer(EARLY, { in_s = recovering_s() }) end
if row.state == STARTED then
  hset(prefix .. 'run:' .. run, 'state', STARTED)  -- WAIT waits for this connection's own writes
  return open_gate()
end
if nothing_starts(job_row(row.job)) then return answer(EARLY, { in_s = SUSPENDED_RETRY_S }) end
move(row, STARTED)
row.started_at = now + due_in(row)
row.beat = row.beat + 1
put_run(row)
record(row)
return open_gate()
