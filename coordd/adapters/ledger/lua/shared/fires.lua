-- Fire times without a row, and what was decided about them (core/ledger/fires.py says why).
--
-- The hash fires has a text for each job: a line for each stretch, "after upto decision", oldest first.

local function get_stretches(name)
  local kept = {}
  for line in string.gmatch(redis.call('HGET', prefix .. 'fires', name) or '', '[^\n]+') do
    local after, upto, decision = string.match(line, '^(%S+) (%S+) (%S+)$')
    after, upto = tonumber(after or ''), tonumber(upto or '')
    if after and upto then kept[#kept + 1] = { after = after, upto = upto, decision = decision } end
  end
  return kept
end

local function put_stretches(name, kept)
  local lines = {}
  for i = math.max(1, #kept - FIRES.STRETCHES_MAX + 1), #kept do
    lines[#lines + 1] = exact(kept[i].after) .. ' ' .. exact(kept[i].upto) .. ' ' .. kept[i].decision
  end
  if lines[1] then
    hset(prefix .. 'fires', name, table.concat(lines, '\n'))
  else
    redis.call('HDEL', prefix .. 'fires', name)
  end
end

-- The fire times up to ``upto`` get no row any more; those without one have this decision.
local function settle_to(job, upto, decision, after, count)
  local kept = get_stretches(job.job)
  local last = kept[#kept]
  local begin = math.max(job.horizon, last and last.upto or 0)
  if upto <= begin or decision == '' then return end
  local adjoins = last and last.upto == begin
  local have_rows = false
  if after == begin and count >= 0 and (count == 0 or job.activated_at <= begin) then
    have_rows = count <= redis.call('ZCOUNT', prefix .. 'fired:' .. job.job, '(' .. exact(begin), exact(upto))
  end
  if have_rows then
    if not adjoins then return end
  elseif not adjoins or last.decision ~= decision then
    kept[#kept + 1] = { after = begin, decision = decision }
  end
  kept[#kept].upto = upto
  put_stretches(job.job, kept)
end

-- The job's horizon, or where its definition counts from, was ahead of the clock, and is not any more.
local function clock_is_right(job)
  local kept = get_stretches(job.job)
  local last, ends = kept[#kept], math.max(job.horizon, job.counts_from)
  if last and last.upto > ends then
    last.upto = ends
    if last.after >= ends then kept[#kept] = nil end
    put_stretches(job.job, kept)
  end
end

-- Retention has forgotten a run that was due then: the horizon settles it from now on, whatever clock has set that.
local function forget_fires(name, upto)
  redis.call('HDEL', prefix .. 'first-heard', name)
  local kept, rest = get_stretches(name), {}
  for _, one in ipairs(kept) do
    if one.upto > upto then
      if not rest[1] then one.after = math.max(one.after, upto) end
      rest[#rest + 1] = one
    end
  end
  if kept[1] then put_stretches(name, rest) end
end

-- Fire times that a caller settles (core.ledger.requests.Settled), up to ``most`` at the latest.
local function settle_up_to(job, said, most)
  local upto = math.min(said.upto, most)
  settle_to(job, upto, said.decision, said.after, upto == said.upto and said.count or -1)
  job.horizon = math.max(job.horizon, upto)
end

-- A horizon that settles something is not moved back when the clock was ahead (open.lua).
local function stand(job)
  job.fence = math.max(job.fence, 1)
  put_job(job)
end

-- A scheduled run without a row is overdue, and its job suspended: its fire time ends without a row.
-- One that its parents have opened, or that was missed for them, keeps its row.
local function is_given_up(job, row, of, said)
  if string.sub(of.by, 1, #OF.OPENED) == OF.OPENED or string.sub(of.by, 1, #OF.ABSENT) == OF.ABSENT then return false end
  if of.scheduled ~= 1 or not is_overdue(row) or recovering_s() > 0 or not nothing_starts(job) then return false end
  if said then settle_up_to(job, said, due_at(row)) end
  settle_to(job, due_at(row), FIRES.SUSPENDED, -1, -1)
  job.horizon = math.max(job.horizon, due_at(row))
  stand(job)
  return true
end

-- This definition of a job counts from now on, unless the answer is another one than ok (nodes/activate.lua).
local function activate_now(name, digest, schedule, how, by, sequence, counts_from, before)
  local job = job_row(name)
  local returns = how == 'returned' and sequence >= job.sequence  -- and no other node has brought it back since
  local returned = how == 'restored' and sequence > job.sequence and counts_from > job.counts_from  -- and forgotten
  if job.digest == digest and not (returns or returned) then return answer(OK, { token = job.sequence }) end
  local begins, said = now, 0
  if how == 'restored' then
    if sequence <= job.sequence then return answer(DIFFERS, { token = job.sequence }) end
    -- Before a sweep has told the node that instant (0): not before the definition that it replaced.
    begins, sequence = counts_from == 0 and job.counts_from or counts_from, sequence - 1
  else
    local seen = (how == 'new' or how == 'returned') and not returns
    if seen and was_activated(name, digest) then return answer(DIFFERS, { token = job.sequence }) end
    -- A clock that is behind dates this definition before the one that it replaces.
    if job.digest ~= '' then said = was_to_count_from(name) end
    if how ~= 'returned' and job.digest ~= '' and schedule == job.schedule then
      begins = job.counts_from
    elseif job.digest == '' then
      -- Under the old rules jobs had schedules without this: such a one goes on where it was.
      if how ~= 'returned' and OF.was_scheduled(job) then begins = job.horizon end
    end
  end
  if how ~= 'restored' and job.digest ~= '' and begins > job.counts_from then settle_to(job, begins, FIRES.REDEFINED, -1, -1) end
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
  clock_is_right(job)  -- the definition before may have been dated by a clock that was ahead
  job.counts_from = math.max(begins, said)
  put_activation(job, by)
  return answer(OK, { token = job.sequence })
end
