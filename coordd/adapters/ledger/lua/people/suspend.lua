-- suspend: stop granting a job's runs, or go on. A bad row of the job is replaced by a sound one.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   job               text; its name
--   suspended         1 or 0
--   by                text; who asks
--   uid               number; the same person
--   until             Unix seconds; when it ends by itself; 0: it does not
--   note              text; why
--   given             text; "", or: resume it only if ``by`` has suspended it, and the hold of this key has the note
--   noted             text; this one; "": there is no such hold
-- Answers:
--   ok                token, by; the version of the job's row, and its runs that start nevertheless
--   finished          ; that end is over already, or it is not as given
--
-- When the memory is full: passes
-- Needs: rows runs jobs

-- For people: a bad row makes way for a sound one.
local function mend_job(name)
  local _, fault = look_at_job(name)
  local kept, beside
  if identity_from() ~= NEVER then kept, beside = read_row(prefix .. 'standing:' .. name, COLUMNS.STANDING) end
  if not fault and not beside then return end
  passes = false
  local job = whole({ job = name, horizon = now, suspended = 0, version = 0, changed_by = '' })
  if kept and not beside then
    for _, column in ipairs(COLUMNS.STANDING) do job[column] = kept[column] end
  else
    local last = redis.call('LRANGE', prefix .. 'activations:' .. name, -1, -1)[1] or ''
    local sequence, digest, schedule, at, from = string.match(last, '^(.-)\n(.-)\n(.-)\n(.-)\n(.-)\n')
    if sequence then
      job.sequence, job.digest, job.schedule = tonumber(sequence), digest, schedule
      job.activated_at, job.counts_from = tonumber(at), tonumber(from)
    end
  end
  job.fence = math.floor(now * 1000000)
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. name, 0, -1)) do
    local row = look_at_run(run)
    if row and row.token < FENCE_MAX then job.fence = math.max(job.fence, row.token) end
  end
  if identity_from() == NEVER then
    write_row(prefix .. 'job:' .. name, COLUMNS.JOB, job, '', nil)
    marks.number('job:' .. name)
  else
    write_standing(job, nil)
    write_barrier(name, nil, job.fence, job.version, true)
  end
end

local name, suspended, by, uid, ends, note = take(), take_number(), take(), take_number(), take_number(), take()
local given, noted = take(), take()
if suspended == 1 and ends > 0 and ends <= now then return answer(FINISHED) end
if suspended == 0 and given ~= '' then
  local whose, _ = hold_says(OF.JOB .. name)
  local _, there = hold_says(given)
  if whose ~= by or there ~= noted then return answer(FINISHED) end
end
mend_job(name)
if not get_job(name) then passes = false end  -- a new row
local job = job_row(name)
is_suspended(job)
if job.suspended ~= suspended then
  job.suspended, job.version, job.changed_by = suspended, job.version + 1, by
  put_job(job)
end
if suspended == 1 then put_hold(OF.JOB .. name, job.version, by, uid, ends, note, now) else drop_hold(OF.JOB .. name) end
return answer(OK, { token = job.version, by = suspended == 1 and begun_runs(name) or '' })
