-- The ledger in Redis, third part of every script: the single steps of a run's life, as core/ledger/steps.py has them.

local MOVES = {
  pending = { received = true, rejected = true, missed = true, revoked = true },
  retry = { received = true, missed = true, revoked = true },
  received = { received = true, started = true, failure = true, revoked = true, lost = true, retry = true,
    missed = true },
  started = { success = true, failure = true, revoked = true, lost = true, retry = true, unknown = true },
  unknown = { started = true, success = true, failure = true, revoked = true, lost = true, retry = true },
}
local HOLDING = { received = true, started = true, unknown = true }
-- What a report may say, and as what an attempt so reported may stand in the record.
local REPORTED = {
  success = { success = true },
  failure = { failure = true },
  revoked = { revoked = true },
  lost = { lost = true, revoked = true },
  retry = { lost = true, revoked = true },
}
local RHO = 0.01
local BACKOFF_MAX_S = 6 * 3600
local SHORT_LIVED_S = 10
local RELAUNCH_PAUSE_S = 1
local RELAUNCH_DOUBLINGS_MAX = 6

local function answer(word, fields)
  local reply = { whose, word }
  for name, value in pairs(fields or {}) do
    reply[#reply + 1] = name
    reply[#reply + 1] = text(value)
  end
  return reply
end

-- One operation; a bad row ends it with an answer that says so, and with no other row touched.
local function guarded(operation)
  local done, said = pcall(operation)
  if done then return said end
  if type(said) == 'table' and said.bad then return answer('bad', { by = said.bad }) end
  -- An error of Redis itself begins with its word (OOM, READONLY): it leaves as it came.
  if type(said) == 'string' and string.find(said, '^%u+ ') then return { err = said } end
  error(said, 0)
end

local function recovering() return answer('recovering', { left_s = recovering_s(), in_s = recovering_s() }) end

local function unpack_policy(packed)
  local words = {}
  for word in string.gmatch(packed, '%S+') do words[#words + 1] = word end
  return {
    packed = packed, on_lost = words[1], overlap = words[2], attempts = tonumber(words[3]),
    relaunches = tonumber(words[4]), delay_s = tonumber(words[5]), backoff = words[6],
    start_within_s = tonumber(words[7]),
  }
end

local function delay_after(policy, failures)
  if policy.backoff == 'linear' then return policy.delay_s * failures end
  if policy.backoff == 'exponential' then
    return math.min(policy.delay_s * 2 ^ math.min(failures - 1, 20), BACKOFF_MAX_S)
  end
  return policy.delay_s
end

local function take_registration()
  return {
    run = take(), job = take(), digest = take(), policy = unpack_policy(take()), fire_at = take_number(),
    scheduled = take_number(), args = take(), by = take(), age_s = take_number(), due = take_number(),
    identity_from = take_number(),
  }
end

local function settled(name, due)
  local job = get_job(name)
  return job and due <= job.horizon and recovering_s() <= 0
end

local function new_row(of)
  -- A trigger is dated by the ledger: the clock of the node that took it may be off by hours.
  local fire_at = of.scheduled == 1 and of.fire_at or now - of.age_s
  local due = of.scheduled == 1 and of.due or fire_at
  return {
    run = of.run, job = of.job, digest = of.digest, args = of.args, policy = of.policy.packed,
    scheduled = of.scheduled, fire_at = fire_at, created_at = now, by = of.by,
    state = 'pending', attempt = 0, not_before = due, failures = 0, relaunches = 0,
    token = 0, nonce = '', node = '', lease = 0, ['until'] = 0, boot = '', beat = 0, commit_token = 0, cancel = 0,
    received_at = 0, started_at = 0, ended_at = 0, exit_code = '', application_id = '', reason = '',
    due = due,
  }
end

local function mine(run, attempt, token, nonce)
  local row = get_run(run)
  if not row or row.attempt ~= attempt or row.token ~= token or row.nonce ~= nonce then return nil, row end
  return row
end

local function is_repeat(row, nonce, node) return row.state == 'received' and row.nonce == nonce and row.node == node end

local function is_older(row, token)
  return not TERMINAL[row.state] and row.token < token
end

-- The answer to a grant that is not the current one: ``word``, or recovering where it was forgotten.
local function not_mine(run, token, word)
  local row = get_run(run)
  if not row or is_older(row, token) then
    -- Not a grant of this ledger's life: so there was one before it.
    if short and (token < tonumber(mark) or token > now * 1000000) then lengthen() end
    if recovering_s() > 0 then return recovering() end
  end
  return answer(word)
end

-- The lease ends further ahead than it lasts: the clock went back, or was ahead when it was granted.
local function was_set_back(row) return row['until'] - now > row.lease + 0.001 end

-- Seconds that are left of a lease, never more than it lasts.
local function left(row) return row.token ~= 0 and not was_set_back(row) and row['until'] - now or 0 end

-- Past its end AND watched in silence for a whole lease by the claimant: the time here is a wall clock, and one step
-- of it would expire every lease at once.
local function lapsed(row, watched)
  return (now >= row['until'] or was_set_back(row)) and watched and watched.token == row.token and watched.beat == row.beat
    and watched.seconds >= row.lease * (1 + 2 * RHO)
end

local function move(row, state)
  if not (MOVES[row.state] or {})[state] then bad(row.run, 'state: ' .. row.state .. ' cannot become ' .. state) end
  row.state = state
end

-- The record is written by put_attempt in the row's own words.
local function record(row) put_attempt(row) end

local function close_attempt(row, state)
  local was = row.state
  row.state = state
  put_attempt(row)
  row.state = was
end

local function granted(row)
  return answer('granted', {
    token = row.token, left_s = left(row), in_s = math.max(0, row.not_before - now), args = row.args,
    attempt = row.attempt,
  })
end

local function grant(job, row, of, claim)
  job.fence = math.max(job.fence + 1, math.floor(now * 1000000))
  put_job(job)
  move(row, 'received')
  row.token = job.fence
  row.nonce, row.node, row.lease = claim.nonce, claim.node, claim.lease_s
  row['until'], row.boot, row.beat = now + claim.lease_s, '', 0
  row.policy = of.policy.packed
  row.received_at, row.started_at, row.ended_at = now, 0, 0
  row.exit_code, row.application_id, row.reason = '', '', ''
  put_run(row)
  record(row)
  return granted(row)
end

local function held(row)
  return answer('held', {
    by = row.node, left_s = left(row), state = row.state, until_token = exact(row.token) .. ' ' .. exact(row.beat),
  })
end

-- A terminal state: nothing leaves it.
local function finish(row, state, reason)
  local held_before = HOLDING[row.state]
  move(row, state)
  row.ended_at, row.reason = now, reason
  put_run(row)
  if held_before then record(row) end
end

-- What this very call has ended: attempt, token, nonce, node, reason.
local function mark_of(row, reason) return { exact(row.attempt), exact(row.token), row.nonce, row.node, reason } end

local function ended(row)
  return answer('finished', { state = row.state, attempt = row.attempt, ended = mark_of(row, row.reason) })
end

-- Close this attempt and make the next one due.
local function again(row, ended_as, delay_s, reason)
  row.ended_at, row.reason = now, reason
  close_attempt(row, ended_as)
  move(row, 'retry')
  row.attempt = row.attempt + 1
  row.not_before = math.max(due_at(row), now + delay_s)
  put_run(row)
end

-- Seconds before an attempt that was lost is tried again: one that hardly lived is not hurried.
local function pause(row)
  if row.relaunches < 2 or now - row.received_at >= SHORT_LIVED_S then return 0 end
  return RELAUNCH_PAUSE_S * 2 ^ math.min(row.relaunches - 2, RELAUNCH_DOUBLINGS_MAX)
end

local function relaunch(row, policy, reason)
  if row.cancel == 1 then
    finish(row, 'revoked', row.reason)
  elseif row.relaunches > policy.relaunches then
    finish(row, 'lost', string.format('%s; lost %.0f times, no relaunch left', reason, row.relaunches))
  else
    again(row, 'lost', pause(row), reason)
  end
end

-- A launched attempt whose end nobody knows: lost and tried again, or unknown and held for a person.
local function lose(row, reason)
  local policy = unpack_policy(row.policy)
  if policy.on_lost == 'hold' and row.state ~= 'received' then
    if row.state ~= 'unknown' then
      move(row, 'unknown')
      if row.cancel == 0 then
        row.reason = reason
      elseif not string.find(row.reason, reason, 1, true) then
        row.reason = reason .. '; ' .. row.reason
      end
      put_run(row)
      record(row)
    end
    return
  end
  row.relaunches = row.relaunches + 1
  relaunch(row, policy, reason)
end

-- A started attempt that nobody holds any more.
local function lease_lost(row)
  local reason = 'its lease lapsed; last held by ' .. row.node
  local was = mark_of(row, reason)
  lose(row, reason)
  if row.state == 'retry' then
    return answer('lost', { attempt = row.attempt, in_s = math.max(0, row.not_before - now), ended = was })
  end
  if TERMINAL[row.state] then return answer('finished', { state = row.state, attempt = row.attempt, ended = was }) end
  return held(row)
end

-- Later than its start_within, by the row's own policy.
local function is_overdue(row) return now > row.not_before + unpack_policy(row.policy).start_within_s end

-- Nobody could launch it in time; ``digest`` is the definition of the node that says so.
local function missed(row, digest)
  local why = string.format('no node could launch it within %g s of its time (%.0f s late)',
    unpack_policy(row.policy).start_within_s, now - row.not_before)
  if row.digest ~= digest then why = why .. "; the job's definition has changed since" end
  finish(row, 'missed', why)
  return ended(row)
end

-- Names in the order of a sorted set, byte by byte: a comparison of Lua's goes by the server's language.
local function precedes(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- One page of the open rows, from a rank on; and where the next one begins.
local function open_page(jobs, from, limit)
  local columns = {
    'run', 'job', 'digest', 'args', 'scheduled', 'fire_at', 'state', 'attempt', 'token', 'nonce', 'node', 'lease', 'beat',
    'not_before', 'until', 'boot', 'policy', 'due',
  }
  local names, runs, after = redis.call('ZRANGE', prefix .. 'open', from, from + limit - 1), {}, {}
  for _, run in ipairs(names) do
    runs[#runs + 1] = redis.call('HMGET', prefix .. 'run:' .. run, unpack(columns))
  end
  local last = names[limit]
  if last then after = { redis.call('ZSCORE', prefix .. 'open', last), last } end
  return { whose, 'open', exact(now), exact(recovering_s()), jobs, runs, after, exact(identity_from()) }
end

-- A report was taken; as long as a quarantine lasts the ledger may go back once more.
local function taken() return answer('ok', { left_s = recovering_s() }) end

-- The end of an attempt.
local function report(run, attempt, token, nonce, state, exit_code, reason, application_id, final)
  local row = mine(run, attempt, token, nonce)
  if not row or not HOLDING[row.state] then
    local past = get_attempt(run, attempt)
    if past and past.token == token and past.nonce == nonce and REPORTED[state][past.state] then return taken() end
    return not_mine(run, token, 'stale')
  end
  -- It was past the gate, or may have been: a ledger that went back has forgotten it.
  if row.state == 'received' and (state == 'success' or state == 'failure' or state == 'lost' and recovering_s() > 0)
  then
    move(row, 'started')
  end
  if application_id ~= '' then row.application_id = application_id end
  row.exit_code = exit_code
  local policy = unpack_policy(row.policy)
  if state == 'failure' then
    row.failures = row.failures + 1
    if not final and row.cancel == 0 and row.failures < policy.attempts then
      again(row, 'failure', delay_after(policy, row.failures), reason)
      return taken()
    end
  elseif state == 'lost' then
    lose(row, reason)
    return taken()
  elseif state == 'retry' then
    row.relaunches = row.relaunches + 1
    relaunch(row, policy, reason)
    return taken()
  end
  if state == 'revoked' and row.cancel == 1 and row.reason ~= '' then reason = row.reason end
  finish(row, state, reason)
  return taken()
end
