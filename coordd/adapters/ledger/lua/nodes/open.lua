-- open: the first page of a sweep: the jobs that a node has, and the rows that are not over.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   limit             number; rows on a page
--   host              text; the node that sweeps ("": nobody who claims)
--   silence_s         seconds; after that time without a sweep it does not claim
--   jobs...           text; their names
-- Answers:
--   open              now, recovering_s, jobs, runs, after, identity_from, holds; in this order, without their names
--                     (shared/pages.lua says more). A job that is bad is named there, and begins nothing by schedule
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires pages

-- The node is a member (Marking._called): registered with its first call, and again after a silence. A full Redis refuses
-- that, and goes on; then it grants nothing either.
local function called(host, silence_s)
  local key, newest = prefix .. 'members', now + MARKS.NEWCOMER_S
  local founding = marks.founding > now and math.min(marks.founding, newest) or 0  -- the clock may be set back
  local one = marks.member(redis.call('HGET', key, host))
  local claims_at = one and math.min(one.claims_at, newest)
  if not one or not marks.is_there(one, now) then
    local members, anybody, gone = redis.call('HGETALL', key), false, {}
    for i = 1, #members, 2 do
      local other = marks.member(members[i + 1])
      if other and marks.is_there(other, now, MARKS.NEWCOMER_S) then anybody = true end
      if not other or not marks.is_there(other, now, MARKS.FORGOTTEN_S) then gone[#gone + 1] = members[i] end
    end
    if not anybody then founding = newest end
    claims_at = founding > 0 and now or newest
    for _, name in ipairs(gone) do redis.call('HDEL', key, name) end
  end
  hset(prefix .. 'meta', 'called_at', exact(now), 'founding', exact(founding))
  hset(key, host, exact(claims_at) .. ' ' .. exact(now) .. ' ' .. exact(silence_s))
end

local limit, host, silence_s, jobs, holds = take_number(), take(), take_number(), {}, {}
if host ~= '' then pcall(called, host, silence_s) end
local function tell(key, kept)
  if kept then holds[#holds + 1] = { key, kept } end
end
tell(ALL, get_hold(ALL))
for _, key in ipairs(redis.call('HKEYS', prefix .. 'drains')) do tell(key, get_hold(key)) end
for i = at + 1, #ARGV do
  local _, fault = look_at_job(ARGV[i])
  if fault then  -- it begins nothing by schedule; the other jobs go on
    jobs[#jobs + 1] = { ARGV[i], BAD, fault }
  else
    local job = job_row(ARGV[i])
    if identity_from() ~= NEVER and not (job.read and is_barrier(job.read)) then
      keep_barrier(ARGV[i])
      job = job_row(ARGV[i])
    end
    -- The clock was ahead when the job was first heard of, or when its definition was activated.
    local begins_ahead = job.horizon > now and job.fence == 0 and recovering_s() <= 0
    local counts_ahead = job.digest ~= '' and job.counts_from > now
    if begins_ahead then job.horizon = now end
    if counts_ahead then job.counts_from = now end
    if begins_ahead or counts_ahead then
      put_job(job)
      clock_is_right(job)
    end
    if is_suspended(job) then tell(OF.JOB .. ARGV[i], (hold_of(job))) end
    jobs[#jobs + 1] = {
      ARGV[i], exact(job.horizon), exact(last_fire_at(job.job)), exact(job.suspended), exact(job.fence),
      exact(job.sequence), job.digest, exact(job.counts_from),
    }
  end
end
return open_page(jobs, 0, limit, holds)
