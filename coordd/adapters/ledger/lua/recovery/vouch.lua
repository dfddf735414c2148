-- vouch: in a quarantine, a node has restored what it knows, and says its mark (core/ledger/marks/rule.py).
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   host              text; the node
--   life              text; the ledger's life before this one, as this node knows it ("": it was told nothing by it)
--   grants            number; the highest number of grants that it was told by that life
-- Answers:
--   ok                left_s; there is no quarantine, or it has ended early
--   recovering        left_s, in_s; others have not vouched yet
--   stale             left_s; it lasts its whole time
--
-- When the memory is full: passes
-- Needs: nothing

local host, life, grants = take(), take(), take_number()
if recovering_s() <= 0 then return answer(OK, { left_s = 0 }) end
local kept = marks.kept
if kept and life ~= '' then
  if life ~= kept.life or grants > kept.grants then
    marks.keep('')
  else
    local awaited = {}
    for name in string.gmatch(kept.awaited, '%S+') do
      if name ~= host then awaited[#awaited + 1] = name end
    end
    marks.keep(table.concat({ mark, exact(kept.at), kept.life, exact(kept.grants), unpack(awaited) }, ' '))
  end
end
if not marks.kept then return answer(STALE, { left_s = recovering_s() }) end
if marks.kept.awaited == '' then return answer(OK, { left_s = 0 }) end
return recovering()
