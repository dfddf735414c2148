-- The single steps of a run's life (core/ledger/steps.py): from one state to the next, as the table MOVES allows.

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

-- A terminal state: nothing leaves it.
local function finish(row, state, reason)
  local held_before, begun = HOLDING[row.state], row.state ~= PENDING
  move(row, state)
  row.ended_at, row.reason = now, reason
  put_run(row)
  if state == SUCCESS then hset(prefix .. 'succeeded', row.job, exact(now)) end
  if held_before then record(row) end
  if begun then BREAKER.ended(row) end  -- the file breakers
end

-- A run that was given up after all its attempts; cancel: a person did not want it (any more).
local function is_dead_letter(row) return (row.state == FAILURE or row.state == LOST) and row.cancel == 0 end

-- What this very call has ended: attempt, token, nonce, node, reason, digest, policy, lease.
local function ended_as(row, reason)
  return {
    exact(row.attempt), exact(row.token), row.nonce, row.node, reason, row.digest, row.policy, exact(row.lease),
  }
end

local function ended(row)
  return answer(FINISHED, { state = row.state, attempt = row.attempt, ended = ended_as(row, row.reason) })
end

-- That number of an attempt, or the next one that was not given: a ledger that went back may have given it.
local function unused(run, number)
  while get_attempt(run, number) do number = number + 1 end
  return number
end

-- Close this attempt and make the next one due.
local function again(row, ended_as, delay_s, reason)
  row.ended_at, row.reason = now, reason
  close_attempt(row, ended_as)
  move(row, RETRY)
  row.attempt = unused(row.run, row.attempt + 1)
  row.not_before = math.max(due_at(row), now + delay_s)
  put_run(row)
end

-- A run of the job that is active or pending, if the policy does not allow another one beside it.
function BACKFILL.in_the_way(of)
  if of.policy.overlap == 'allow' then return nil end
  local other = redis.call('ZRANGE', prefix .. 'active:' .. of.job, 0, 0)[1]
  return other or redis.call('ZRANGE', prefix .. 'waiting:' .. of.job, 0, 0)[1]
end

-- The next attempt of that run is due now: of a row, or of a new one. The table of moves does not apply: a person asks.
function BACKFILL.open_once_more(row, of, mark)
  if row.was then
    record(row)
    row.digest, row.args, row.policy = of.digest, of.args, of.policy.packed
    row.failures, row.relaunches, row.cancel, row.commit_token = 0, 0, 0, 0
  end
  row.state, row.attempt, row.by = RETRY, unused(row.run, row.attempt + 1), mark
  row.reason, row.not_before = 'opened by ' .. mark, math.max(due_at(row), now)
  put_run(row)
  return row
end
