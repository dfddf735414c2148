-- pass_over: settle fire times that no node launches any more. Nothing is granted.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   job               text; its name
--   digest            text; of the definition whose fire times they are
--   identity_from     Unix seconds; from when on ids are made of the nominal time, as the caller knows it
--   start_within_s    seconds; until then after its time a run may still start
--   settled_to        Unix seconds; up to here, fire times without a row are settled
--   settled_as        text; what became of them
--   settled_after     Unix seconds; after it, the caller's schedule has
--   settled_count     number; of fire times, up to there; below 0: not counted
-- Answers:
--   ok                ; they are settled
--   finished          state; they were settled before
--   early             in_s; the last of them may still start
--   differs           ; another definition of the job counts
--   outdated          ; the caller goes by other rules than those in force
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires

local name, digest, begin, start_within_s = take(), take(), take_number(), take_number()
local said = { upto = take_number(), decision = take(), after = take_number(), count = take_number() }
if recovering_s() > 0 then return recovering() end
if identity_from() == NEVER or begin ~= identity_from() then return answer(OUTDATED) end
local job = job_row(name)
if job.digest ~= digest then return answer(DIFFERS) end
local ahead_s = said.upto + start_within_s - now
if ahead_s >= 0 then return answer(EARLY, { in_s = ahead_s }) end
if said.upto <= job.horizon then return answer(FINISHED, { state = SETTLED }) end
settle_up_to(job, said, said.upto)
stand(job)
return answer(OK)
