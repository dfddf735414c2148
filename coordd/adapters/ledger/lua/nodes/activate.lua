-- activate: this definition of a job counts from now on.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   job               text; its name
--   digest            text; of the definition
--   schedule          text; the digest of the part that says when it fires
--   how               text; new, changed, returned, restored or person
--   by                text; who or what brought it
--   sequence          number; since which the node was without it, or which it had
--   counts_from       Unix seconds; of a restored one
--   before            text; older digests, oldest first, with a space between them
-- Answers:
--   ok                token; its sequence
--   differs           token; another one counts: its sequence
--   outdated          ; the old rules are in force, which know of no definitions
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires

local name, digest, schedule, how, by, sequence, counts_from, before =
  take(), take(), take(), take(), take(), take_number(), take_number(), take()
if recovering_s() > 0 and how ~= 'restored' then return recovering() end
if identity_from() == NEVER then return answer(OUTDATED) end
local job = job_row(name)
local returns = how == 'returned' and sequence >= job.sequence  -- and no other node has brought it back since
if job.digest == digest and not returns then return answer(OK, { token = job.sequence }) end
local begins, said = now, 0
if how == 'restored' then
  if sequence <= job.sequence then return answer(DIFFERS, { token = job.sequence }) end
  begins, sequence = counts_from, sequence - 1
else
  local seen = (how == 'new' or how == 'returned') and not returns
  if seen and was_activated(name, digest) then return answer(DIFFERS, { token = job.sequence }) end
  if how ~= 'returned' and job.digest ~= '' and schedule == job.schedule then
    begins, said = job.counts_from, was_to_count_from(name)
  elseif job.digest == '' then
    -- Under the old rules jobs had schedules without this: such a one goes on where it was.
    local was_scheduled = last_fire_at(name) > 0 or job.horizon < identity_from()
    if how ~= 'returned' and was_scheduled then begins = job.horizon end
  end
end
if how ~= 'restored' and job.digest ~= '' and begins > job.counts_from then settle_to(job, begins, REDEFINED, -1, -1) end
local number = math.max(job.sequence, sequence) + 1
job.activated_at, job.counts_from = now, begins
-- A ledger that remembers no definition is told the older ones: a node whose file is not edited yet brings none of them.
local older = {}
if remembers_none(name) then
  for one in string.gmatch(before, '%S+') do older[#older + 1] = one end
end
job.schedule = ''
for at, digest_before in ipairs(older) do
  job.sequence, job.digest = number - #older + at - 1, digest_before
  put_activation(job, by)
end
job.sequence, job.digest, job.schedule = number, digest, schedule
put_job(job)
job.counts_from = math.max(begins, said)
put_activation(job, by)
return answer(OK, { token = job.sequence })
