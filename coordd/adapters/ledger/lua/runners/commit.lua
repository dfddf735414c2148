-- commit: publish under the token: once a run, for the attempt that holds it.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   attempt           number; from 0
--   token             number; the fencing token of the grant
--   nonce             text; the claimant's own random text
-- Answers:
--   ok                left_s; the token may be published
--   stale             ; the grant is not the current one any more, or another one has published
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs grants

local run, attempt, token, nonce = take(), take_number(), take_number(), take()
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, attempt, token, STALE) end
if row.state ~= STARTED or row.commit_token ~= 0 and row.commit_token ~= token then return answer(STALE) end
row.commit_token = token
put_run(row)
return answer(OK, { left_s = left(row) })
