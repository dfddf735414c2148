-- settle: end what nobody may launch any more, or nobody holds. Judged by the row alone; nothing is granted.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   run               text; the run's id
--   attempt           number; from 0
--   watched_token     number, or "" for nothing watched; what the caller has seen of the holder:
--   watched_beat      number, or ""; of this token this beat,
--   watched_s         seconds, or ""; for this long by its own clock
-- Answers:
--   finished          state, attempt, ended; the run is over. ended: by this very call
--   lost              attempt, in_s, ended; the attempt is over, this one is next
--   held              by, left_s, state, until_token; nothing to be ended
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs grants moves breakers endings missed

-- What nobody may launch any more, or nobody holds: judged by the row alone, and nothing is granted.
local run, attempt = take(), take_number()
local watched = { token = take_number(), beat = take_number(), seconds = take_number() }
local row = get_run(run)
if not row or TERMINAL[row.state] then return answer(FINISHED, { state = row and row.state or SETTLED }) end
if recovering_s() > 0 then return recovering() end
if row.attempt ~= attempt then return held(row) end
local nobodys = (row.state == RECEIVED or row.state == STARTED) and lapsed(row, watched)
if row.state == STARTED and nobodys then return lease_lost(row) end
if (row.state == PENDING or row.state == RETRY or nobodys) and is_overdue(row) then return missed(row, row.digest) end
return held(row)
