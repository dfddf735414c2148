-- The rows of runs and of their attempts: whether one is sound, reading it, and writing it with the sorted sets that it
-- stands in (core.ledger.rows.Store has the same for ledgers that are asked in Python).

-- What is wrong with a run's row, or nil (core.ledger.sound.run_fault).
local function run_fault(row, fault)
  if fault then return fault end
  if not STATES[row.state] then return 'state: ' .. string.sub(row.state, 1, 60) .. ' is not a state' end
  for _, column in ipairs(COLUMNS.WHOLE) do
    local value = row[column]
    if value < 0 or value ~= math.floor(value) then return column .. ': expected a whole number, found ' .. text(value) end
  end
  for _, column in ipairs(COLUMNS.INSTANT) do
    local value = row[column]
    if value < 0 or value > INSTANT_MAX then return column .. ': expected an instant, found ' .. text(value) end
  end
  if row.state == RETRY and row.attempt == 0 then return 'attempt: a run that waits for its retry has had one' end
  if row.scheduled > 1 or row.cancel > 1 then return 'scheduled, cancel: expected 0 or 1, found another number' end
  local n, sound = 0, true
  for word in string.gmatch(row.policy, '%S+') do
    n = n + 1
    local of, number = POLICY[n] or {}, tonumber(word)
    if of.words then sound = sound and of.words[word] end
    if of.most then sound = sound and number and number >= 0 and number <= of.most end
    if of.name == 'limits' then
      for item in string.gmatch(word, '[^,]+') do
        sound = sound and LIMIT.KINDS[string.match(item, '^%a+[:=]') or '']
      end
    end
  end
  if not sound or n < POLICY_WORDS_MIN or n > #POLICY then
    return 'policy: expected ' .. #POLICY .. ' words as a node writes them, found ' .. string.sub(row.policy, 1, 60)
  end
  return nil
end

-- A run's row, or nil, and what is wrong with it.
local function look_at_run(run)
  local row, fault = read_row(prefix .. 'run:' .. run, COLUMNS.RUN)
  if not row then return nil end
  if row.run ~= run then fault = 'run: expected its own name, found ' .. string.sub(row.run, 1, 60) end
  row.was = row.state
  return row, run_fault(row, fault)
end

-- When a run is due at the earliest; rows of an older version have one instant for both.
local function due_at(row) return math.max(row.fire_at, row.due) end

local function get_run(run)
  local row, fault = look_at_run(run)
  if fault then bad(run, fault) end
  return row
end

-- A backfill or a re-run has opened the run's present attempt: live runs go first.
function BACKFILL.opened(row)
  if row.scheduled == 1 and string.sub(row.by, 1, #BACKFILL.BY) == BACKFILL.BY then return true end
  if string.sub(row.by, 1, #OF.REPEATED) == OF.REPEATED then return true end
  return string.sub(row.by, 1, #OF.OPENED) == OF.OPENED and string.find(row.by, OF.RERUN_OF, 1, true) ~= nil
end

-- The lists that people page through: all runs, a job's, those in a state, a job's in a state; by creation.
local function list_keys(job, state)
  return prefix .. 'list:' .. state .. ':', prefix .. 'list:' .. state .. ':' .. job
end

-- The slots that a run takes by its policy (core/ledger/limits/text.py): under each key stand the runs that hold it.
local function slots_of(policy) return string.gmatch(policy, 'slots:([^=,]+)=') end

-- Count this grant in its rates.
local function started(row, limits)
  for key, period in string.gmatch(limits, 'rate:([^=,]+)=%d+/(%d+)') do
    local starts = prefix .. 'starts:' .. key
    redis.call('ZREMRANGEBYSCORE', starts, '-inf', exact(now - tonumber(period)))
    redis.call('ZADD', starts, exact(math.max(now, row.not_before)), row.run .. '/' .. exact(row.attempt))
  end
end

local function put_run(row)
  local news = not row.kept  -- what a sweep shows has changed (core.ledger.rows.changed_by)
  for _, column in ipairs(COLUMNS.FEED) do news = news or row[column] ~= row.kept[column] end
  local run, job, state, was = row.run, row.job, row.state, row.was
  local due_was = row.kept and row.kept.not_before
  local policy_was = row.kept and row.kept.policy
  row.kept = row.kept or {}
  write_row(prefix .. 'run:' .. run, COLUMNS.RUN, row, '', row.kept)
  if news then marks.number('run:' .. run) end
  if news and row.scheduled == 1 and (not was or was == REVOKED or state == REVOKED) then marks.number('job:' .. job) end
  if was ~= state or policy_was ~= row.policy then
    for key in slots_of(HOLDING[was] and policy_was or '') do redis.call('ZREM', prefix .. 'slots:' .. key, run) end
    for key in slots_of(HOLDING[state] and row.policy or '') do redis.call('ZADD', prefix .. 'slots:' .. key, 0, run) end
  end
  if was ~= state then
    local created_at = exact(row.created_at)
    local all, of_job = list_keys(job, state)
    redis.call('ZADD', all, created_at, run)
    redis.call('ZADD', of_job, created_at, run)
    all, of_job = list_keys(job, was or '')
    if was then
      redis.call('ZREM', all, run)
      redis.call('ZREM', of_job, run)
    else
      redis.call('ZADD', all, created_at, run)
      redis.call('ZADD', of_job, created_at, run)
    end
    if ACTIVE[state] then
      redis.call('ZADD', prefix .. 'active:' .. job, 0, run)
    elseif ACTIVE[was] then
      redis.call('ZREM', prefix .. 'active:' .. job, run)
    end
    if state == PENDING then
      redis.call('ZADD', prefix .. 'waiting:' .. job, exact(row.not_before), run)
    elseif was == PENDING then
      redis.call('ZREM', prefix .. 'waiting:' .. job, run)
    end
    if TERMINAL[state] then
      redis.call('ZADD', prefix .. 'ended', exact(row.ended_at), run)
      redis.call('ZREM', prefix .. 'open', run)
    elseif TERMINAL[was] then  -- a person asks for it once more
      redis.call('ZREM', prefix .. 'ended', run)
    end
  end
  if not TERMINAL[state] and (TERMINAL[was] or row.not_before ~= due_was) then
    redis.call('ZADD', prefix .. 'open', exact(row.not_before), run)
  end
  if row.scheduled == 1 and was ~= state then
    if state == REVOKED and row.token == 0 then  -- revoked before anybody claimed it: it may lie far ahead
      redis.call('ZREM', prefix .. 'fired:' .. job, run)
    else
      redis.call('ZADD', prefix .. 'fired:' .. job, exact(due_at(row)), run)
    end
  end
  row.was = state
end

-- All attempts of a run are one hash: a field is "<attempt>:<column>".
local function put_attempt(row)
  write_row(prefix .. 'attempts:' .. row.run, COLUMNS.ATTEMPT, row, exact(row.attempt) .. ':')
end

-- (token, nonce, state) of an attempt, or nil.
local function get_attempt(run, attempt)
  local field = exact(attempt) .. ':'
  local values = redis.call('HMGET', prefix .. 'attempts:' .. run, field .. 'token', field .. 'nonce', field .. 'state')
  if not values[1] then return nil end
  return { token = tonumber(values[1]) or 0, nonce = values[2] or '', state = values[3] or '' }
end
