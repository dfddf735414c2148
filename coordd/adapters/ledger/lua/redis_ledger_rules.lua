-- The ledger in Redis, last part of a script: one operation, as core/ledger/rules.py has it. This file is cut at the lines
-- that begin with three dashes; core/ledger/rules.py says why each rule is as it is. What makes rows is refused when the
-- memory is full; what a running job needs is not, even where it puts a forgotten row back.

--- register
local of = take_registration()
local row = get_run(of.run)
if not row then
  if of.scheduled == 1 and settled(of.job, of.due) then return answer('exists', { state = 'settled' }) end
  local word, in_s = refused(job_row(of.job), of)
  if word then return answer(word, { state = word == 'finished' and 'settled' or '', in_s = in_s or 0 }) end
  put_run(new_row(of))
  return answer('ok', { state = 'pending' })
end
local known = row.digest ~= '' or row.state ~= 'revoked'
if known and (row.digest ~= of.digest or row.args ~= of.args) then return answer('conflict', { state = row.state }) end
return answer('exists', { state = row.state })

--- claim
local of = take_registration()
local claim = { attempt = take_number(), nonce = take(), node = take(), lease_s = take_number() }
local watched = { token = take_number(), beat = take_number(), seconds = take_number() }
claim.settled_to = take_number()
if not watched.token then watched = nil end

local row = get_run(of.run)

-- The reply was lost: the same grant again, for a whole lease, only for the definition that was granted.
local function granted_again()
  if row.digest ~= of.digest then return answer('differs', { state = row.state }) end
  row['until'], row.beat = now + row.lease, row.beat + 1
  put_run(row)
  return granted(row)
end

if recovering_s() > 0 then
  if row and row.attempt == claim.attempt and is_repeat(row, claim.nonce, claim.node) then return granted_again() end
  return recovering()
end
local job = job_row(of.job)

local function overlap(policy)
  if policy.overlap == 'allow' or row.attempt > 0 or row.state == 'received' then return nil end
  if policy.overlap == 'queue' then
    local first = redis.call('ZRANGE', prefix .. 'waiting:' .. row.job, 0, 0, 'WITHSCORES')
    for place = 1, 100 do  -- a bad row at the head does not hold up the queue
      local found, fault = nil, nil
      if first[1] and first[1] ~= row.run then found, fault = look_at_run(first[1]) end
      if not fault then break end
      first = redis.call('ZRANGE', prefix .. 'waiting:' .. row.job, place, place, 'WITHSCORES')
    end
    local before = tonumber(first[2])
    if before and (before < row.not_before or before == row.not_before and precedes(first[1], row.run)) then
      if not row.was then put_run(row) end
      return answer('limited', { by = 'queue: ' .. first[1] .. ' is first', in_s = 1 })
    end
  end
  local others = {}
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. row.job, 0, -1)) do
    -- One of them that is bad may be running: nothing starts beside it.
    if run ~= row.run and get_run(run) then others[#others + 1] = run end
  end
  if not others[1] then return nil end
  local other = get_run(others[1])
  local ahead_s = row.not_before - now
  local waits = answer('limited', { by = 'overlap with ' .. other.run, in_s = ahead_s > 0 and math.min(ahead_s, 1) or 1 })
  if ahead_s > 0 then return waits end
  if policy.overlap == 'forbid' then
    finish(row, 'rejected', 'overlap: ' .. other.run .. ' is ' .. other.state .. ' on '
      .. (other.node ~= '' and other.node or 'no node'))
    return ended(row)
  end
  if policy.overlap == 'replace' then
    for _, run in ipairs(others) do
      other = get_run(run)
      if other.cancel == 0 then
        other.cancel = 1
        other.reason = 'replaced by ' .. row.run
        if other.state == 'retry' then finish(other, 'revoked', other.reason) else put_run(other) end
      end
    end
  end
  if not row.was then put_run(row) end
  return waits
end

local function claim_due()
  local policy = of.policy
  if row.cancel == 1 then
    finish(row, 'revoked', row.reason ~= '' and row.reason or 'cancelled before it started')
    return ended(row)
  end
  if is_overdue(row) then return missed(row, of.digest) end
  if row.digest ~= of.digest then return answer('differs', { state = row.state }) end
  if row.not_before - now > 5 then return answer('early', { in_s = row.not_before - now - 5 }) end
  if job.suspended == 1 then return answer('limited', { by = 'suspended', in_s = 5 }) end
  local blocked = overlap(policy)
  if blocked then return blocked end
  if of.scheduled == 1 then job.horizon = math.max(job.horizon, math.min(claim.settled_to, due_at(row))) end
  return grant(job, row, of, claim)
end

if not row then
  if claim.attempt ~= 0 or of.scheduled == 1 and of.due <= job.horizon then
    return answer('finished', { state = 'settled' })
  end
  local word, in_s = refused(job, of)
  if word then return answer(word, { state = word == 'finished' and 'settled' or '', in_s = in_s or 0 }) end
  row = new_row(of)
end
if TERMINAL[row.state] then return answer('finished', { state = row.state, attempt = row.attempt }) end
if claim.attempt < row.attempt then
  return answer('lost', { attempt = row.attempt, in_s = math.max(0, row.not_before - now) })
end
if claim.attempt > row.attempt then return held(row) end
if row.state == 'pending' or row.state == 'retry' then return claim_due() end
if row.state == 'received' then
  if is_repeat(row, claim.nonce, claim.node) then return granted_again() end
  if lapsed(row, watched) then return claim_due() end
  return held(row)
end
if row.state == 'started' and lapsed(row, watched) then return lease_lost(row) end
return held(row)

--- settle, also when the memory is full
-- What nobody may launch any more, or nobody holds: judged by the row alone, and nothing is granted.
local run, attempt = take(), take_number()
local watched = { token = take_number(), beat = take_number(), seconds = take_number() }
if not watched.token then watched = nil end
local row = get_run(run)
if not row or TERMINAL[row.state] then return answer('finished', { state = row and row.state or 'settled' }) end
if recovering_s() > 0 then return recovering() end
if row.attempt ~= attempt then return held(row) end
local nobodys = (row.state == 'received' or row.state == 'started') and lapsed(row, watched)
if row.state == 'started' and nobodys then return lease_lost(row) end
if (row.state == 'pending' or row.state == 'retry' or nobodys) and is_overdue(row) then return missed(row, row.digest) end
return held(row)

--- gate, also when the memory is full
local run, attempt, token, nonce = take(), take_number(), take_number(), take()
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, token, 'stale') end
if row.cancel == 1 then
  if row.state == 'received' then
    finish(row, 'revoked', row.reason ~= '' and row.reason or 'cancelled before it started')
  end
  return answer('revoked')
end
-- What is held by no lease must be on a replica before it starts: the caller WAITs for as many as there are.
local function open_gate()
  local fields = { left_s = left(row) }
  if replicas > 0 and unpack_policy(row.policy).on_lost == 'hold' then fields.replicas = replicas end
  return answer('ok', fields)
end
if row.state ~= 'received' and row.state ~= 'started' then
  return answer(row.state == 'revoked' and 'revoked' or 'stale')
end
-- Also where a witness put it back as started: it only knew of the grant.
if now < row.not_before then return answer('early', { in_s = row.not_before - now }) end
if row.state == 'received' and now >= row['until'] then return answer('stale') end
if recovering_s() > 0 then return answer('early', { in_s = recovering_s() }) end
if row.state == 'started' then
  hset(prefix .. 'run:' .. run, 'state', 'started')  -- WAIT waits for this connection's own writes
  return open_gate()
end
if job_row(row.job).suspended == 1 then return answer('early', { in_s = 5 }) end
move(row, 'started')
row.started_at = now
row.beat = row.beat + 1
put_run(row)
record(row)
return open_gate()

--- renew, also when the memory is full
local run, attempt, token, nonce, lease_s, application_id, launched =
  take(), take_number(), take_number(), take(), take_number(), take(), take() == '1'
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, token, 'lost') end
if not HOLDING[row.state] then return answer('lost') end
if row.state == 'unknown' then
  move(row, 'started')
  if row.cancel == 0 then row.reason = '' end
  record(row)
elseif row.state == 'received' and launched then
  move(row, 'started')
  row.started_at = now
  record(row)
end
row.lease, row['until'], row.boot, row.beat = lease_s, now + lease_s, '', row.beat + 1
if application_id ~= '' then row.application_id = application_id end
put_run(row)
return answer(row.cancel == 1 and 'cancel' or 'ok', { left_s = lease_s })

--- report, also when the memory is full
return report(take(), take_number(), take_number(), take(), take(), take(), take(), take(), take() == '1')

--- commit, also when the memory is full
local run, attempt, token, nonce = take(), take_number(), take_number(), take()
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, token, 'stale') end
if row.state ~= 'started' or row.commit_token ~= 0 and row.commit_token ~= token then return answer('stale') end
row.commit_token = token
put_run(row)
return answer('ok', { left_s = left(row) })

--- restore, also when the memory is full
local of = take_registration()
local attempt, token, nonce, node, lease_s = take_number(), take_number(), take(), take(), take_number()
local state, exit_code, reason, application_id, final = take(), take(), take(), take(), take() == '1'
local row = get_run(of.run)
if short and (not row or is_older(row, token)) then lengthen() end
if recovering_s() <= 0 then return answer('stale') end
local job = job_row(of.job)
if token > job.fence then
  job.fence = token
  put_job(job)
end
if not row or is_older(row, token) then
  row = row or new_row(of)
  row.digest, row.args = of.digest, of.args
  if HOLDING[row.state] and row.attempt < attempt then close_attempt(row, 'lost') end
  local tries = math.max(0, attempt - row.failures - row.relaunches)
  local failures = math.min(tries, math.max(0, of.policy.attempts - 1 - row.failures))
  row.failures = row.failures + failures
  row.relaunches = row.relaunches + tries - failures
  row.state = state == 'received' and 'received' or 'started'
  row.attempt, row.token, row.nonce, row.node = attempt, token, nonce, node
  row.lease, row['until'], row.boot, row.beat = lease_s, now + lease_s, '', 0
  row.policy = of.policy.packed
  row.received_at, row.started_at, row.ended_at = now, state == 'received' and 0 or now, 0
  row.exit_code, row.application_id = '', application_id
  if row.cancel == 0 then row.reason = '' end
  put_run(row)
  record(row)
elseif row.attempt ~= attempt or row.token ~= token or row.nonce ~= nonce then
  local past = get_attempt(of.run, attempt)
  local known = past and past.token == token and past.nonce == nonce
  return answer(known and 'ok' or 'stale', { state = row.state })
elseif row.state == 'received' and state ~= 'received' then
  move(row, 'started')
  row.started_at, row['until'], row.boot, row.beat = now, now + lease_s, '', row.beat + 1
  put_run(row)
  record(row)
end
if REPORTED[state] and HOLDING[row.state] then
  report(of.run, attempt, token, nonce, state, exit_code, reason, application_id, final)
  row = get_run(of.run)
end
return answer('ok', { left_s = HOLDING[row.state] and left(row) or 0, state = row.state })

--- revoke, also when the memory is full
local run, by = take(), take()
local of = take_registration()
local why = 'revoked by ' .. by
local row, fault = look_at_run(run)
if fault then  -- the way out of it for people, whatever state it was in
  why = why .. '; the row of ' .. run .. ' is bad: ' .. fault
  drop_bad_run(run)
  row = nil
end
if not row and not fault and of.scheduled == 1 and settled(of.job, of.due) then
  return answer('finished', { state = 'settled' })
end
if not row then passes = false end  -- a new row
row = row or new_row(of)
if TERMINAL[row.state] or row.state == 'started' or row.state == 'unknown' then
  return answer('finished', { state = row.state })
end
finish(row, 'revoked', why)
return answer('ok', { state = 'revoked' })

--- cancel, also when the memory is full
local run, by = take(), take()
local row = get_run(run)
if not row or TERMINAL[row.state] then return answer('finished', { state = row and row.state or '' }) end
if row.state == 'pending' or row.state == 'retry' then
  finish(row, 'revoked', 'cancelled by ' .. by)
  return answer('ok', { state = 'revoked' })
end
if row.state ~= 'unknown' then
  row.reason = 'cancelled by ' .. by
elseif row.cancel == 0 then
  row.reason = row.reason .. '; cancelled by ' .. by
end
row.cancel = 1
put_run(row)
return answer('ok', { state = row.state, by = row.node, attempt = row.attempt })

--- resolve, also when the memory is full
local run, outcome, by = take(), take(), take()
local row = get_run(run)
if not row or row.state ~= 'unknown' then return answer('finished', { state = row and row.state or '' }) end
local why = 'resolved as ' .. outcome .. ' by ' .. by
if outcome == 'relaunch' then
  row.cancel = 0
  again(row, 'lost', 0, why)
else
  finish(row, outcome == 'success' and 'success' or 'failure', why)
end
return answer('ok', { state = row.state })

--- suspend, also when the memory is full
local name, suspended, by = take(), take_number(), take()
mend_job(name)
if not get_job(name) then passes = false end  -- a new row
local job = job_row(name)
if job.suspended ~= suspended then
  job.suspended, job.version, job.changed_by = suspended, job.version + 1, by
  put_job(job)
end
return answer('ok', { token = job.version })

--- open
local limit, jobs = take_number(), {}
for i = at + 1, #ARGV do
  local _, fault = look_at_job(ARGV[i])
  if fault then  -- it begins nothing by schedule; the other jobs go on
    jobs[#jobs + 1] = { ARGV[i], 'bad', fault }
  else
    local job = job_row(ARGV[i])
    if identity_from() ~= NEVER and not (job.read and is_fenced(job.read)) then
      keep_fenced(ARGV[i])
      job = job_row(ARGV[i])
    end
    -- The clock was ahead when the job was first heard of, or when its definition was activated.
    local begins_ahead = job.horizon > now and job.fence == 0 and recovering_s() <= 0
    local counts_ahead = job.digest ~= '' and job.counts_from > now
    if begins_ahead then job.horizon = now end
    if counts_ahead then job.counts_from = now end
    if begins_ahead or counts_ahead then put_job(job) end
    jobs[#jobs + 1] = {
      ARGV[i], exact(job.horizon), exact(last_fire_at(job.job)), exact(job.suspended), exact(job.fence),
      exact(job.sequence), job.digest, exact(job.counts_from),
    }
  end
end
return open_page(jobs, 0, limit)

--- page
local limit, not_before, run = take_number(), take(), take()
-- How many rows stand up to that one, which may have ended since: first those that are due sooner, then among equals.
local from = redis.call('ZCOUNT', prefix .. 'open', '-inf', '(' .. not_before)
local to = redis.call('ZCOUNT', prefix .. 'open', '-inf', not_before)
while from < to do
  local middle = math.floor((from + to) / 2)
  if precedes(run, redis.call('ZRANGE', prefix .. 'open', middle, middle)[1]) then
    to = middle
  else
    from = middle + 1
  end
end
return open_page({}, from, limit)

--- prune, also when the memory is full
local before, limit = now - take_number(), take_number()
local count, from = 0, 0
while count < limit do
  -- Those that were revoked far ahead of their time stay; they are few.
  local runs = redis.call('ZRANGEBYSCORE', prefix .. 'ended', '-inf', '(' .. exact(before), 'LIMIT', from, 100)
  for _, run in ipairs(runs) do
    local row, fault
    if count < limit then row, fault = look_at_run(run) end
    if row and not fault and not (row.scheduled == 1 and due_at(row) >= before) then
      if row.scheduled == 1 then
        local job = job_row(row.job)
        if due_at(row) > job.horizon then
          job.horizon = due_at(row)
          put_job(job)
        end
      end
      drop_run(row)
      count = count + 1
    else
      from = from + 1
    end
  end
  if #runs < 100 then break end
end
return answer('ok', { token = count })

--- new_rules
local known = take_number()
if recovering_s() > 0 then return recovering() end
if identity_from() ~= NEVER then return answer('ok') end
local begin = known >= 0 and known or now + IDENTITY_AHEAD_S
hset(prefix .. 'meta', 'rules', '2', 'identity_from', exact(begin))
begun = begin
for _, name in ipairs(redis.call('SMEMBERS', prefix .. 'jobs')) do keep_fenced(name) end
return answer('ok', { in_s = math.max(0, begin - now) })

--- activate
local name, digest, schedule, how, by, sequence, counts_from =
  take(), take(), take(), take(), take(), take_number(), take_number()
if recovering_s() > 0 and how ~= 'restored' then return recovering() end
if identity_from() == NEVER then return answer('outdated') end
local job = job_row(name)
local returns = how == 'returned' and sequence >= job.sequence  -- and no other node has brought it back since
if job.digest == digest and not returns then return answer('ok', { token = job.sequence }) end
local begins = now
if how == 'restored' then
  if sequence <= job.sequence then return answer('differs', { token = job.sequence }) end
  begins, sequence = counts_from, sequence - 1
else
  local seen = (how == 'new' or how == 'returned') and not returns
  if seen and was_activated(name, digest) then return answer('differs', { token = job.sequence }) end
  if how ~= 'returned' and job.digest ~= '' and schedule == job.schedule then
    begins = job.counts_from
  elseif job.digest == '' then
    -- Under the old rules jobs had schedules without this: such a one goes on where it was.
    local was_scheduled = last_fire_at(name) > 0 or job.horizon < identity_from()
    if how ~= 'returned' and was_scheduled then begins = job.horizon end
  end
end
job.sequence = math.max(job.sequence, sequence) + 1
job.digest, job.schedule, job.activated_at, job.counts_from = digest, schedule, now, begins
put_job(job)
put_activation(job, by)
return answer('ok', { token = job.sequence })

--- accept_epoch, also when the memory is full
local left_s = recovering_s()
open_at, short = 0, false
remember()
return answer('ok', { left_s = left_s })

--- close, also when the memory is full
local force, by = take() == '1', take()
if not force then
  if recovering_s() > 0 then return recovering() end
  local held_runs = {}
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'open', 0, -1)) do
    local state = redis.call('HGET', prefix .. 'run:' .. run, 'state')
    if state == 'received' or state == 'started' then held_runs[#held_runs + 1] = run end
  end
  if held_runs[1] then
    table.sort(held_runs)
    local more = #held_runs > 10 and string.format(' and %d more', #held_runs - 10) or ''
    return answer('held', { by = table.concat(held_runs, ', ', 1, math.min(10, #held_runs)) .. more })
  end
end
-- Versions that know of no closing refuse a schema that is not theirs.
hset(prefix .. 'meta', 'closed', string.format('by %s at %.0f', by, now), 'schema', '0')
return answer('ok')

--- put
-- Rows of an export; the caller has checked them. Whoever reads them next finds a ledger that went back.
for i = at + 1, #ARGV do
  local row = cjson.decode(ARGV[i])
  if row.kind == 'run' then
    put_run(row)
  elseif row.kind == 'attempt' then
    put_attempt(row)
  else
    put_job(row)
    for _, past in ipairs(row.activations or {}) do
      local sequence, digest, schedule, activated_at, counts_from, by = unpack(past)
      put_activation({
        job = row.job, sequence = sequence, digest = digest, schedule = schedule, activated_at = activated_at,
        counts_from = counts_from,
      }, by)
    end
    if row.digest ~= '' and not was_activated(row.job, row.digest) then put_activation(row, 'import') end
  end
end
hset(prefix .. 'meta', 'epoch', 'imported')
return answer('ok')
