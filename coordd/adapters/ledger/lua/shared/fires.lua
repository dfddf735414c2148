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
  for i = math.max(1, #kept - STRETCHES_MAX + 1), #kept do
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
  if after == begin and count >= 0 then
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

-- Retention has forgotten a run that was due then.
local function forget_fires(name, upto)
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
local function is_given_up(job, row, of, said)
  if of.scheduled ~= 1 or not is_overdue(row) or recovering_s() > 0 or not nothing_starts(job) then return false end
  if said then settle_up_to(job, said, due_at(row)) end
  settle_to(job, due_at(row), SUSPENDED, -1, -1)
  job.horizon = math.max(job.horizon, due_at(row))
  stand(job)
  return true
end
