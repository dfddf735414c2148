-- open: a sweep: the states of jobs; and the first page of the rows that are not over, or what has changed since a cursor.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   limit             number; rows on a page
--   host              text; the node that sweeps ("": nobody who claims)
--   silence_s         seconds; after that time without a sweep it does not claim
--   since             text; a cursor. "", or one that cannot be served: the first page
--   named             text; runs that are told besides what has changed, a line each
--   jobs...           text; jobs that are told besides what has changed
-- Answers:
--   open              now, recovering_s, jobs, runs, after, identity_from, holds, cursor, gone, more; in this order,
--                     without their names (shared/pages.lua says more). A job that is bad is named there, and begins
--                     nothing by schedule
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

-- The number in the caller's cursor; nil: the caller begins again (Sweeping._served).
local function served(since, newest)
  local life, number = string.match(since, '^(%S*) (%d+)$')
  number = tonumber(number or '')
  if not number or life ~= mark or recovering_s() > 0 then return nil end
  return newest - MARKS.FEED_MAX <= number and number <= newest and number or nil
end

local limit, host, silence_s, since, named = take_number(), take(), take_number(), take(), take()
local jobs, holds, names, wanted, seen = {}, {}, {}, {}, {}
local function once(list, name)
  if not seen[name] then list[#list + 1] = string.sub(name, 5) end
  seen[name] = true
end

-- Before the corrections of this very sweep: the next one tells them once more.
local newest = tonumber(redis.call('HGET', prefix .. 'meta', 'changes') or '0')
if host ~= '' then pcall(called, host, silence_s) end
local from, changed = served(since, newest), {}
if from then
  changed = redis.call('ZRANGEBYSCORE', prefix .. 'changed', '(' .. exact(from), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
end
local more = #changed == 2 * limit
local upto = more and tonumber(changed[#changed]) or newest
local cursor = mark .. ' ' .. exact(upto)
for i = at + 1, #ARGV do once(wanted, 'job:' .. ARGV[i]) end
for i = 1, #changed, 2 do once(string.sub(changed[i], 1, 4) == 'job:' and wanted or names, changed[i]) end
for run in string.gmatch(named, '[^\n]+') do once(names, 'run:' .. run) end

local function tell(key, kept)
  if kept then holds[#holds + 1] = { key, kept } end
end
tell(ALL, get_hold(ALL))
local drains = redis.call('HKEYS', prefix .. 'drains')
table.sort(drains)  -- a large hash has no order
for _, key in ipairs(drains) do tell(key, get_hold(key)) end
for _, name in ipairs(wanted) do
  local _, fault = look_at_job(name)
  if fault then  -- it begins nothing by schedule; the other jobs go on
    jobs[#jobs + 1] = { name, BAD, fault }
  else
    local job = job_row(name)
    if identity_from() ~= NEVER and not (job.read and is_barrier(job.read)) then
      keep_barrier(name)
      job = job_row(name)
    end
    -- The clock was ahead when the job was first heard of, or when its definition was activated.
    local moved_back = OF.moves_back(job)
    local counts_ahead = job.digest ~= '' and job.counts_from > now
    if counts_ahead then job.counts_from = now end
    if moved_back or counts_ahead then
      put_job(job)
      clock_is_right(job)
    end
    if is_suspended(job) then tell(OF.JOB .. name, (hold_of(job))) end
    jobs[#jobs + 1] = {
      name, exact(job.horizon), exact(last_fire_at(job.job)), exact(job.suspended), exact(job.fence),
      exact(job.sequence), job.digest, exact(job.counts_from),
    }
  end
end
if not from then return open_page(jobs, 0, limit, holds, cursor) end

-- What has changed since that number, and the named rows (Sweeping._tell_run).
local runs, gone = {}, {}
for _, run in ipairs(names) do
  local row = redis.call('HMGET', prefix .. 'run:' .. run, 'state', unpack(COLUMNS.OPEN))
  if not row[2] or TERMINAL[row[1]] then
    gone[#gone + 1] = run
  else
    table.remove(row, 1)
    runs[#runs + 1] = row
  end
end
local reply = told_page(jobs, {}, {}, holds, cursor)
reply[6], reply[11], reply[12] = runs, gone, more and '1' or '0'
return reply
