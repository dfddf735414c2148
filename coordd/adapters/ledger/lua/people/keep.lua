-- keep: hold all jobs or a node, or end that.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   key               text; what is held: core/ledger/rows.py
--   held              1 or 0
--   by                text; who asks
--   uid               number; the same person
--   until             Unix seconds; when it ends by itself; 0: it does not
--   note              text; why
--   given             text; "", or: only if the hold of this key has the note
--   noted             text; this one; "": there is no such hold
-- Answers:
--   ok                by; it is as asked. by: with all jobs held, the runs that start nevertheless
--   finished          ; that end is over already, or it is not as given
--
-- When the memory is full: passes
-- Needs: rows runs jobs

local key, wanted, by, uid, ends, note = take(), take_number(), take(), take_number(), take_number(), take()
local given, noted = take(), take()
if wanted == 1 and ends > 0 and ends <= now then return answer(FINISHED) end
if given ~= '' then
  local _, there = hold_says(given)
  if there ~= noted then return answer(FINISHED) end
end
if wanted == 1 then put_hold(key, 0, by, uid, ends, note, now) else drop_hold(key) end
return answer(OK, { by = wanted == 1 and key == ALL and begun_runs() or '' })
