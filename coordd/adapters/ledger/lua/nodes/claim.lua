-- claim: grant one attempt to one node, or say why not. The order of the checks is the contract.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   registration      11 values; shared/registrations.lua
--   attempt           number; from 0
--   nonce             text; the claimant's own random text
--   node              text; the claimant
--   lease_s           seconds; how long the lease is to last
--   watched_token     number, or "" for nothing watched; what the caller has seen of the holder:
--   watched_beat      number, or ""; of this token this beat,
--   watched_s         seconds, or ""; for this long by its own clock
--   settled_to        Unix seconds; up to here older fire times without a row are settled
--   settled_as        text; what became of them, or "" for nothing to record
--   settled_after     Unix seconds; after it, the caller's schedule has
--   settled_count     number; of fire times, up to there; below 0: not counted
--   opens             1: the row is made if there is none
-- Answers:
--   granted           token, left_s, in_s, args, attempt; in_s: until its time
--   held              by, left_s, state, until_token; by whom. until_token: "<token> <beat>"
--   lost              attempt, in_s, ended; the attempt is over, this one is next. ended: by this very call
--   finished          state, attempt, in_s, ended; the run is over
--   limited           by, in_s; the job is suspended, the node is drained or new here, another run is in the way, or a
--                     limit is
--   early             state, in_s; it lies too far ahead
--   differs           state, in_s; the run, or its job, has another definition
--   outdated          state, in_s; the caller goes by other rules than those in force
--   unrecorded        nothing; a run without a row, and it is not made
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires registrations grants moves breakers endings missed

local function is_repeat(row, nonce, node) return row.state == RECEIVED and row.nonce == nonce and row.node == node end

local function granted(row)
  return answer(GRANTED, {
    token = row.token, left_s = left(row), in_s = due_in(row), args = row.args,
    attempt = row.attempt,
  })
end

local function grant(job, row, of, claim)
  job.fence = math.max(job.fence + 1, math.floor(now * 1000000))
  put_job(job)
  move(row, RECEIVED)
  row.token = job.fence
  row.nonce, row.node, row.lease = claim.nonce, claim.node, claim.lease_s
  row['until'], row.boot, row.beat = now + claim.lease_s, '', 0
  row.policy = of.policy.packed
  row.received_at, row.started_at, row.ended_at = now, 0, 0
  row.exit_code, row.application_id, row.reason = '', '', ''
  put_run(row)
  record(row)
  marks.count()
  return granted(row)
end

local of = take_registration()
local claim = { attempt = take_number(), nonce = take(), node = take(), lease_s = take_number() }
local watched = { token = take_number(), beat = take_number(), seconds = take_number() }
claim.settled = { upto = take_number(), decision = take(), after = take_number(), count = take_number() }
claim.opens = take_number()

local row = get_run(of.run)

-- The reply was lost: the same grant again, for a whole lease, only for the definition that was granted.
local function granted_again()
  if row.digest ~= of.digest then return answer(DIFFERS, { state = row.state }) end
  row['until'], row.beat = now + row.lease, row.beat + 1
  put_run(row)
  return granted(row)
end

if recovering_s() > 0 then
  if row and row.attempt == claim.attempt and is_repeat(row, claim.nonce, claim.node) then return granted_again() end
  return recovering()
end
local job = job_row(of.job)

-- ---- limits (core/ledger/limits)

-- It waits, with a row, where people and the sweep can see it.
local function waits(row, why, in_s)
  if not row.was then put_run(row) end
  return answer(LIMITED, { by = why, in_s = in_s })
end

-- The answer to a claim that a limit stops, or nil.
local function limited(row, limits)
  local why, in_s = stopped_by(row, limits)
  if not why then return nil end
  local ahead_s = due_in(row)
  if ahead_s > 0 then return answer(LIMITED, { by = why, in_s = math.max(ahead_s, in_s) }) end
  return waits(row, why, in_s)
end

local function waiting_before(row)
  local waiting = prefix .. 'waiting:' .. row.job
  if row.was == PENDING then return redis.call('ZRANK', waiting, row.run) or 0 end
  local count = redis.call('ZCOUNT', waiting, '-inf', '(' .. exact(row.not_before))
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', waiting, exact(row.not_before), exact(row.not_before))) do
    if precedes(run, row.run) then count = count + 1 end
  end
  return count
end

-- Reject what does not fit into the job's queue; true if it was this run. A run that is not due yet may wait.
local function overfull(row, limits)
  if due_in(row) > 0 then return false end
  local said, keep = string.match(limits, 'queue=(%d+)/(%a+)')
  local size = tonumber(said or LIMIT.QUEUE_MAX)
  if keep == 'last' and size > 0 then
    for _ = 1, LIMIT.DROPPED_MAX do
      if waiting_before(row) < size then return false end
      local first = redis.call('ZRANGE', prefix .. 'waiting:' .. row.job, 0, 0)[1]
      finish(get_run(first), REJECTED, 'the queue is full: ' .. exact(size) .. ' wait, and the last are kept')
    end
    return false
  end
  if waiting_before(row) < size then return false end
  finish(row, REJECTED, 'the queue is full: ' .. exact(size) .. ' wait before it')
  return true
end

-- The live run that a backfilled one waits for: it is active, or due and waiting; or nil.
local function live_first()
  if not BACKFILL.opened(row) then return nil end
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. row.job, 0, -1)) do
    local other = run ~= row.run and get_run(run)
    if other and not BACKFILL.opened(other) then return run end
  end
  return redis.call('ZRANGEBYSCORE', prefix .. 'waiting:' .. row.job, '-inf', exact(now), 'LIMIT', 0, 1)[1]
end

-- A ledger that went back may have admitted another run meanwhile: a retry waits until that one is over. A backfilled
-- run, which begins as a retry, waits for live runs too.
local function admitted_twice()
  local live = live_first()
  if live then return answer(LIMITED, { by = 'overlap with ' .. live, in_s = OVERLAP_RETRY_S }) end
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. row.job, 0, -1)) do
    local other = run ~= row.run and get_run(run)
    if other and other.state ~= RETRY then
      return answer(LIMITED, { by = 'overlap with ' .. other.run, in_s = OVERLAP_RETRY_S })
    end
  end
  return nil
end

local function overlap(policy)
  if policy.overlap == 'allow' or row.state == RECEIVED then return nil end
  if row.attempt > 0 then return admitted_twice() end
  if policy.overlap == 'queue' then
    local first = redis.call('ZRANGE', prefix .. 'waiting:' .. row.job, 0, 0, 'WITHSCORES')
    for place = 1, BAD_MAX do  -- a bad row at the head does not hold up the queue
      local found, fault = nil, nil
      if first[1] and first[1] ~= row.run then found, fault = look_at_run(first[1]) end
      if not fault then break end
      first = redis.call('ZRANGE', prefix .. 'waiting:' .. row.job, place, place, 'WITHSCORES')
    end
    local before = tonumber(first[2])
    if before and (before < row.not_before or before == row.not_before and precedes(first[1], row.run)) then
      if overfull(row, policy.limits or '') then return ended(row) end
      return waits(row, 'queue: ' .. first[1] .. ' is first', OVERLAP_RETRY_S)
    end
  end
  local others, live, newer = {}, nil, nil
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. row.job, 0, -1)) do
    -- One of them that is bad may be running: nothing starts beside it.
    local one = run ~= row.run and get_run(run)
    -- A backfilled run that has not begun gives way; one that has begun is waited for.
    if one and not (one.state == RETRY and BACKFILL.opened(one)) then
      others[#others + 1] = run
      if not BACKFILL.opened(one) then
        live = live or run
        if due_at(one) > due_at(row) then newer = newer or run end
      end
    end
  end
  if not others[1] then return nil end
  local other = get_run(live or others[1])
  local ahead_s = due_in(row)
  local why = 'overlap with ' .. other.run
  if ahead_s > 0 then return answer(LIMITED, { by = why, in_s = math.min(ahead_s, OVERLAP_RETRY_S) }) end
  if policy.overlap == 'forbid' and live then
    finish(row, REJECTED, 'overlap: ' .. other.run .. ' is ' .. other.state .. ' on '
      .. (other.node ~= '' and other.node or 'no node'))
    return ended(row)
  end
  if policy.overlap == 'queue' and overfull(row, policy.limits or '') then return ended(row) end
  if policy.overlap == 'replace' then
    if newer then  -- several wait for their turn, and are claimed in any order
      finish(row, REVOKED, 'replaced by ' .. newer)
      return ended(row)
    end
    for _, run in ipairs(others) do
      other = get_run(run)
      if other.cancel == 0 then
        other.cancel = 1
        other.reason = 'replaced by ' .. row.run
        if other.state == RETRY then finish(other, REVOKED, other.reason) else put_run(other) end
      end
    end
  end
  return waits(row, why, OVERLAP_RETRY_S)
end

local function claim_due()
  local policy = of.policy
  if row.cancel == 1 then
    finish(row, REVOKED, row.reason ~= '' and row.reason or 'cancelled before it started')
    return ended(row)
  end
  if is_overdue(row) then return missed(row, of.digest) end
  if row.digest ~= of.digest then return answer(DIFFERS, { state = row.state }) end
  if due_in(row) > CLAIM_AHEAD_S then
    return answer(EARLY, { in_s = due_in(row) - CLAIM_AHEAD_S })
  end
  if nothing_starts(job) then return answer(LIMITED, { by = 'suspended', in_s = SUSPENDED_RETRY_S }) end
  local host = string.match(claim.node, '^(.*)%.') or ''
  if get_hold(OF.NODE .. host) then
    return answer(LIMITED, { by = 'drained', in_s = SUSPENDED_RETRY_S })
  end
  local new_s = marks.newcomer_s(host)
  if new_s > 0 then return answer(LIMITED, { by = 'newcomer', in_s = new_s }) end
  local limits = policy.limits or ''
  local blocked = BREAKER.stops(row, limits) or overlap(policy) or limited(row, limits)
  if blocked then return blocked end
  BREAKER.grants(row, limits)
  if of.scheduled == 1 then settle_up_to(job, claim.settled, due_at(row)) end
  local answered = grant(job, row, of, claim)
  started(row, limits)
  return answered
end

if not row then
  if claim.attempt ~= 0 or of.scheduled == 1 and of.due <= job.horizon then
    return answer(FINISHED, { state = SETTLED })
  end
  if claim.opens ~= 1 then return answer(UNRECORDED, {}) end
  local word, in_s = refused(job, of)
  if word then return answer(word, { state = word == FINISHED and SETTLED or '', in_s = in_s or 0 }) end
  row = new_row(of)
  if is_given_up(job, row, of, claim.settled) then return answer(FINISHED, { state = SETTLED }) end
end
if TERMINAL[row.state] then return answer(FINISHED, { state = row.state, attempt = row.attempt }) end
if claim.attempt < row.attempt then
  return answer(LOST, { attempt = row.attempt, in_s = due_in(row) })
end
if claim.attempt > row.attempt then return held(row) end
if row.state == PENDING or row.state == RETRY then return claim_due() end
if row.state == RECEIVED then
  if is_repeat(row, claim.nonce, claim.node) then return granted_again() end
  if lapsed(row, watched) then return claim_due() end
end
if row.state == STARTED and lapsed(row, watched) then return lease_lost(row) end
return held(row)
