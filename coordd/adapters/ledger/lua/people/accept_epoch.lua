-- accept_epoch: a person knows that nothing was lost: the quarantine ends.
--
-- KEYS and the first ARGV: shared/begin.lua.
-- Answers:
--   ok                left_s; what was left of it
--
-- When the memory is full: passes
-- Needs: nothing

local left_s = recovering_s()
open_at, short = 0, false
remember()
return answer(OK, { left_s = left_s })
