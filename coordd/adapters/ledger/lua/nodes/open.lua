-- open: the first page of a sweep: the jobs that a node has, and the rows that are not over.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   limit             number; rows on a page
--   jobs...           text; their names
-- Answers:
--   open              now, recovering_s, jobs, runs, after, identity_from, holds; in this order, without their names
--                     (shared/pages.lua says more). A job that is bad is named there, and begins nothing by schedule
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires pages

local limit, jobs, holds = take_number(), {}, {}
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
