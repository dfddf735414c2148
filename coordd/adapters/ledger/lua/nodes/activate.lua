-- activate: this definition of a job counts from now on.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   job               text; its name
--   digest            text; of the definition
--   schedule          text; the digest of the part that says when it fires
--   how               text; new, changed, returned, restored or person
--   by                text; who or what brought it
--   sequence          number; since which the node was without it, or which it had
--   counts_from       Unix seconds; of a restored one; 0: the node was not told it yet
--   before            text; older digests, oldest first, with a space between them
--   revision          number; of the published revision that the definition comes from; 0: from none
-- Answers:
--   ok                token; its sequence
--   differs           token; another one counts: its sequence
--   outdated          ; the old rules are in force, which know of no definitions
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires

local name, digest, schedule, how, by, sequence, counts_from, before, revision =
  take(), take(), take(), take(), take(), take_number(), take_number(), take(), take_number()
if recovering_s() > 0 and how ~= 'restored' then return recovering() end
if identity_from() == NEVER then return answer(OUTDATED) end
if how == 'restored' and revision > 0 and OF.revision_in_force() > revision then
  local known = job_row(name)
  if known.digest ~= digest then return answer(DIFFERS, { token = known.sequence }) end
end
return activate_now(name, digest, schedule, how, by, sequence, counts_from, before)
