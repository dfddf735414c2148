-- renew: extend the lease.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   attempt           number; from 0
--   token             number; the fencing token of the grant
--   nonce             text; the claimant's own random text
--   lease_s           seconds; from now on
--   application_id    text; "": not known
--   launched          1 or 0; it is past the gate, which a ledger that went back may have forgotten
-- Answers:
--   ok                left_s; the new lease
--   cancel            left_s; the same, but end the attempt
--   lost              ; the grant is not the current one any more
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs grants moves

local run, attempt, token, nonce, lease_s, application_id, launched =
  take(), take_number(), take_number(), take(), take_number(), take(), take() == '1'
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, attempt, token, LOST) end
if not HOLDING[row.state] then return answer(LOST) end
if row.state == UNKNOWN then
  move(row, STARTED)
  if row.cancel == 0 then row.reason = '' end
  record(row)
elseif row.state == RECEIVED and launched then
  move(row, STARTED)
  row.started_at = now
  record(row)
end
row.lease, row['until'], row.boot, row.beat = lease_s, now + lease_s, '', row.beat + 1
if application_id ~= '' then row.application_id = application_id end
put_run(row)
return answer(row.cancel == 1 and CANCEL or OK, { left_s = lease_s })
