-- The ledger in Redis, last part of a script: one operation, as core/ledger.py has it. This file is cut at the lines
-- that begin with three dashes; core/ledger.py says why each rule is as it is.

--- register
local of = take_registration()
local row = get_run(of.run)
if not row then
  if of.scheduled == 1 and settled(of.job, of.fire_at) then return answer('exists', { state = 'settled' }) end
  job_row(of.job)
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
if recovering_s() > 0 then
  if row and row.attempt == claim.attempt and is_repeat(row, claim.nonce, claim.node) then return granted(row) end
  return recovering()
end
local job = job_row(of.job)

local function overlap(policy)
  if policy.overlap == 'allow' or row.attempt > 0 or row.state == 'received' then return nil end
  if policy.overlap == 'queue' then
    local first = redis.call('ZRANGE', prefix .. 'waiting:' .. row.job, 0, 0, 'WITHSCORES')
    local before = tonumber(first[2])
    if before and (before < row.not_before or before == row.not_before and first[1] < row.run) then
      if not row.was then put_run(row) end
      return answer('limited', { by = 'queue: ' .. first[1] .. ' is first', in_s = 1 })
    end
  end
  local others = {}
  for _, run in ipairs(redis.call('ZRANGE', prefix .. 'active:' .. row.job, 0, -1)) do
    if run ~= row.run then others[#others + 1] = run end
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
  if now > row.not_before + policy.start_within_s then
    local why = string.format('no node could launch it within %g s of its time (%.0f s late)', policy.start_within_s,
      now - row.not_before)
    if row.digest ~= of.digest then why = why .. "; the job's definition has changed since" end
    finish(row, 'missed', why)
    return ended(row)
  end
  if row.digest ~= of.digest then return answer('differs', { state = row.state }) end
  if row.not_before - now > 5 then return answer('early', { in_s = row.not_before - now - 5 }) end
  if job.suspended == 1 then return answer('limited', { by = 'suspended', in_s = 5 }) end
  local blocked = overlap(policy)
  if blocked then return blocked end
  if of.scheduled == 1 then job.horizon = math.max(job.horizon, math.min(claim.settled_to, row.fire_at)) end
  return grant(job, row, of, claim)
end

if not row then
  if claim.attempt ~= 0 or of.scheduled == 1 and of.fire_at <= job.horizon then
    return answer('finished', { state = 'settled' })
  end
  row = new_row(of)
end
if TERMINAL[row.state] then return answer('finished', { state = row.state, attempt = row.attempt }) end
if claim.attempt < row.attempt then
  return answer('lost', { attempt = row.attempt, in_s = math.max(0, row.not_before - now) })
end
if claim.attempt > row.attempt then return held(row) end
if row.state == 'pending' or row.state == 'retry' then return claim_due() end
if row.state == 'received' then
  if is_repeat(row, claim.nonce, claim.node) then return granted(row) end
  if lapsed(row, watched) then return claim_due() end
  return held(row)
end
if row.state == 'started' and lapsed(row, watched) then
  local reason = 'its lease lapsed; last held by ' .. row.node
  local was = mark_of(row, reason)
  lose(row, reason)
  if row.state == 'retry' then
    return answer('lost', { attempt = row.attempt, in_s = math.max(0, row.not_before - now), ended = was })
  end
  if TERMINAL[row.state] then return answer('finished', { state = row.state, attempt = row.attempt, ended = was }) end
end
return held(row)

--- gate
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
  redis.call('HSET', prefix .. 'run:' .. run, 'state', 'started')  -- WAIT waits for this connection's own writes
  return open_gate()
end
if job_row(row.job).suspended == 1 then return answer('early', { in_s = 5 }) end
move(row, 'started')
row.started_at = now
row.beat = row.beat + 1
put_run(row)
record(row)
return open_gate()

--- renew
local run, attempt, token, nonce, lease_s, application_id, launched =
  take(), take_number(), take_number(), take(), take_number(), take(), take() == '1'
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, token, 'lost') end
if not HOLDING[row.state] then return answer('lost') end
if row.state == 'unknown' then
  move(row, 'started')
  row.reason = ''
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

--- report
return report(take(), take_number(), take_number(), take(), take(), take(), take(), take(), take() == '1')

--- commit
local run, attempt, token, nonce = take(), take_number(), take_number(), take()
local row = mine(run, attempt, token, nonce)
if not row then return not_mine(run, token, 'stale') end
if row.state ~= 'started' or row.commit_token ~= 0 and row.commit_token ~= token then return answer('stale') end
row.commit_token = token
put_run(row)
return answer('ok', { left_s = left(row) })

--- restore
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

--- revoke
local run, by = take(), take()
local of = take_registration()
local row = get_run(run)
if not row and of.scheduled == 1 and settled(of.job, of.fire_at) then
  return answer('finished', { state = 'settled' })
end
row = row or new_row(of)
if TERMINAL[row.state] or row.state == 'started' or row.state == 'unknown' then
  return answer('finished', { state = row.state })
end
finish(row, 'revoked', 'revoked by ' .. by)
return answer('ok', { state = 'revoked' })

--- cancel
local run, by = take(), take()
local row = get_run(run)
if not row or TERMINAL[row.state] then return answer('finished', { state = row and row.state or '' }) end
if row.state == 'pending' or row.state == 'retry' then
  finish(row, 'revoked', 'cancelled by ' .. by)
  return answer('ok', { state = 'revoked' })
end
row.cancel = 1
row.reason = 'cancelled by ' .. by
put_run(row)
return answer('ok', { state = row.state, by = row.node, attempt = row.attempt })

--- resolve
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

--- suspend
local name, suspended, by = take(), take_number(), take()
local job = job_row(name)
if job.suspended ~= suspended then
  job.suspended, job.version, job.changed_by = suspended, job.version + 1, by
  put_job(job)
end
return answer('ok', { token = job.version })

--- open
local jobs = {}
for i = 4, #ARGV - 1 do
  local job = job_row(ARGV[i])
  jobs[#jobs + 1] = { job.job, exact(job.horizon), exact(last_fire_at(job.job)), exact(job.suspended), exact(job.fence) }
end
local columns = {
  'run', 'job', 'digest', 'args', 'scheduled', 'fire_at', 'state', 'attempt', 'token', 'nonce', 'node', 'lease', 'beat',
  'not_before', 'until', 'boot',
}
local runs = {}
for _, run in ipairs(redis.call('ZRANGE', prefix .. 'open', 0, tonumber(ARGV[#ARGV]) - 1)) do
  runs[#runs + 1] = redis.call('HMGET', prefix .. 'run:' .. run, unpack(columns))
end
return { mark, 'open', exact(now), exact(recovering_s()), jobs, runs }

--- prune
local before, limit = now - take_number(), take_number()
local count, from = 0, 0
while count < limit do
  -- Those that were revoked far ahead of their time stay; they are few.
  local runs = redis.call('ZRANGEBYSCORE', prefix .. 'ended', '-inf', '(' .. exact(before), 'LIMIT', from, 100)
  for _, run in ipairs(runs) do
    local row = count < limit and get_run(run)
    if row and not (row.scheduled == 1 and row.fire_at >= before) then
      if row.scheduled == 1 then
        local job = job_row(row.job)
        if row.fire_at > job.horizon then
          job.horizon = row.fire_at
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

--- accept_epoch
local left_s = recovering_s()
open_at, short = 0, false
remember()
return answer('ok', { left_s = left_s })

--- put
-- Rows of an export; the caller has checked them. Whoever reads them next finds a ledger that went back.
for i = 4, #ARGV do
  local row = cjson.decode(ARGV[i])
  if row.kind == 'run' then put_run(row) elseif row.kind == 'attempt' then put_attempt(row) else put_job(row) end
end
redis.call('HSET', prefix .. 'meta', 'epoch', 'imported')
return answer('ok')
