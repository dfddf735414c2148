-- The breaker of a job (core/ledger/breaker): the ends of runs open and close it, and a claim is judged by it. Everything
-- is in one table, because Lua knows at most 200 names at a time.

-- What the limits of a policy say of the job's breaker; nil without one that can be read.
function BREAKER.rule_in(limits)
  local said
  for item in string.gmatch(limits, '[^,]+') do
    if not said and string.sub(item, 1, #BREAKER.ITEM) == BREAKER.ITEM then said = string.sub(item, #BREAKER.ITEM + 1) end
  end
  local groups, window, open_for, longest, growth, when_open, enforce = string.match(said or '',
    '^([^/]+)/(%d+)/(%d+)/(%d+)/(%a+)/(%a+)/([01])$')
  if not groups or not BREAKER.GROWTH[growth] or not BREAKER.WHEN_OPEN[when_open] then return nil end
  local rule = {
    window_ms = tonumber(window), open_for_ms = tonumber(open_for), longest_ms = tonumber(longest), growth = growth,
    when_open = when_open, enforce = enforce == '1', groups = {},
  }
  for group in string.gmatch(groups .. ';', '([^;]*);') do
    local count, words = string.match(group, '^(%d+):(.+)$')
    count = tonumber(count or '')
    if not count or count < 1 or count > BREAKER.COUNT_MAX then return nil end
    local set = {}
    for word in string.gmatch(words, '[^+]+') do set[word] = true end
    rule.groups[#rule.groups + 1] = { count = count, words = set }
  end
  if #rule.groups > BREAKER.GROUPS_MAX then return nil end
  return rule
end

-- For how long (seconds) it stays open after that many trips in a row.
function BREAKER.stays_open_s(rule, trips)
  local factor = 1
  if rule.growth == 'linear' then factor = trips end
  if rule.growth == 'exponential' then factor = 2 ^ math.min(trips - 1, BREAKER.DOUBLINGS_MAX) end
  return math.min(rule.open_for_ms * factor, math.max(rule.open_for_ms, rule.longest_ms)) / 1000
end

-- The groups that count an attempt which ended so.
function BREAKER.groups_of(rule, row)
  local kinds = {}
  if row.state == FAILURE then
    local timed_out = string.sub(row.reason, 1, #BREAKER.TIMED_OUT) == BREAKER.TIMED_OUT
    kinds[timed_out and BREAKER.TIMEOUT or FAILURE] = true
    if row.exit_code ~= '' and not timed_out then kinds[row.exit_code] = true end
    local before_detail = string.match(row.reason, '^[^:]*')
    if string.find(before_detail, BREAKER.HAS_MATCHED, 1, true) then kinds[BREAKER.MATCHED] = true end
  elseif row.state == LOST then
    kinds[LOST] = true
  end
  local found = {}
  for number, group in ipairs(rule.groups) do
    local counts = false
    for kind in pairs(kinds) do counts = counts or group.words[kind] end
    if counts then found[#found + 1] = number end
  end
  return found
end

-- ---- its row: the note of a hold; without one it is closed, and so it is if that is damaged

function BREAKER.get(job)
  local kept = { state = BREAKER.CLOSED, since = 0, retry_at = 0, trips = 0, prevented = 0, probe = BREAKER.NOBODY,
    last = BREAKER.NOBODY, failures = {} }
  local note = string.match(look_at_hold(OF.BREAKER .. job) or '', '^[^\n]*\n[^\n]*\n(.*)$')
  local state, since, retry_at, trips, prevented, probe, last, failures = string.match(note or '',
    '^(%S+) (%S+) (%S+) (%d+) (%d+) (%S+) (%S+) (%S+)$')
  if not BREAKER.STATES[state or ''] or not tonumber(since) or not tonumber(retry_at) then return kept end
  local found = {}
  if failures ~= BREAKER.NOBODY then
    for one in string.gmatch(failures .. ',', '([^,]*),') do
      local group, at_ms = string.match(one, '^(%d+)%.(%d+)$')
      if not group then return kept end
      found[#found + 1] = { tonumber(group), tonumber(at_ms) }
    end
  end
  return { state = state, since = tonumber(since), retry_at = tonumber(retry_at), trips = tonumber(trips),
    prevented = tonumber(prevented), probe = probe, last = last, failures = found }
end

function BREAKER.put(job, kept)
  local key = OF.BREAKER .. job
  if not kept then
    drop_hold(key)
    return
  end
  local failures = {}
  for i, one in ipairs(kept.failures) do failures[i] = exact(one[1]) .. '.' .. exact(one[2]) end
  local note = string.format('%s %.3f %.3f %.0f %.0f %s %s %s', kept.state, kept.since, kept.retry_at, kept.trips,
    kept.prevented, kept.probe, kept.last, failures[1] and table.concat(failures, ',') or BREAKER.NOBODY)
  put_hold(key, 0, '', 0, 0, note, now)
end

function BREAKER.trip(kept, rule)
  kept.state, kept.probe = BREAKER.OPEN, BREAKER.NOBODY
  kept.trips, kept.prevented, kept.since = kept.trips + 1, 0, now
  kept.retry_at = now + BREAKER.stays_open_s(rule, kept.trips)
end

-- One more end that these groups count; true once one of them has enough.
function BREAKER.count(kept, rule, groups, at_ms)
  for _, group in ipairs(groups) do kept.failures[#kept.failures + 1] = { group, at_ms } end
  local rest, full = {}, false
  for number, group in ipairs(rule.groups) do
    local own = {}
    for _, one in ipairs(kept.failures) do
      local within = rule.window_ms == 0 or one[2] > at_ms - rule.window_ms
      if one[1] == number and within then own[#own + 1] = one end
    end
    for i = math.max(1, #own - group.count + 1), #own do rest[#rest + 1] = own[i] end
    full = full or #own >= group.count
  end
  kept.failures = rest
  return full
end

-- ---- the ends of runs

-- The run has ended, after an attempt: what that means for its job's breaker.
function BREAKER.ended(row)
  if not string.find(row.policy, BREAKER.ITEM, 1, true) then return end
  local rule, kept = BREAKER.rule_in(unpack_policy(row.policy).limits or ''), BREAKER.get(row.job)
  if not rule or kept.state == BREAKER.OPEN then return end
  local tries = kept.state == BREAKER.HALF_OPEN
  if tries and kept.probe ~= row.run then return end
  if row.state ~= SUCCESS and row.state ~= FAILURE and row.state ~= LOST then
    if tries then  -- it proves nothing: the next one tries
      kept.state, kept.probe, kept.since, kept.retry_at = BREAKER.OPEN, BREAKER.NOBODY, now, now
      BREAKER.put(row.job, kept)
    end
    return
  end
  local groups = BREAKER.groups_of(rule, row)
  if row.state == SUCCESS or not groups[1] and not (tries and row.state == LOST) then
    BREAKER.put(row.job, nil)
    return
  end
  kept.last = row.run
  local full = BREAKER.count(kept, rule, groups, math.floor(now * 1000))
  if tries or full then BREAKER.trip(kept, rule) end
  BREAKER.put(row.job, kept)
end

-- A person has to look at the run: it must not keep its job's breaker half-open until then.
function BREAKER.unknown(row)
  if not string.find(row.policy, BREAKER.ITEM, 1, true) then return end
  local rule, kept = BREAKER.rule_in(unpack_policy(row.policy).limits or ''), BREAKER.get(row.job)
  if rule and kept.state == BREAKER.HALF_OPEN and kept.probe == row.run then
    kept.last = row.run
    BREAKER.trip(kept, rule)
    BREAKER.put(row.job, kept)
  end
end

-- ---- claims

-- A run that was admitted goes on, and is not asked about; nor is one of a job without a breaker.
function BREAKER.rule_for(row, limits)
  if row.state == RECEIVED or row.state == RETRY and not BACKFILL.opened(row) then return nil end
  return BREAKER.rule_in(limits)
end

-- Whether the job's breaker stops the run now; which answers to its claim, or rejects it.
function BREAKER.stops(row, limits)
  local rule = BREAKER.rule_for(row, limits)
  if not rule then return nil end
  local kept, due = BREAKER.get(row.job), math.max(now, row.not_before)
  local isolated = get_hold(OF.ISOLATED .. row.job) ~= nil
  if kept.state == BREAKER.HALF_OPEN and kept.probe ~= row.run then
    local tries = get_run(kept.probe)
    if not tries or not BREAKER.TRYING[tries.state] then  -- a ledger that went back has forgotten it
      kept.last = kept.probe
      BREAKER.trip(kept, rule)
      BREAKER.put(row.job, kept)
    end
  end
  local shut = kept.state == BREAKER.OPEN and due < kept.retry_at
    or kept.state == BREAKER.HALF_OPEN and kept.probe ~= row.run
  if not shut and not isolated then return nil end
  local ahead_s, stops = due_in(row), isolated or rule.enforce
  if ahead_s > 0 then return answer(LIMITED, { by = BREAKER.BY, in_s = math.min(ahead_s, BREAKER.RETRY_S) }) end
  if row.state == RETRY and stops then return answer(LIMITED, { by = BREAKER.BY, in_s = BREAKER.RETRY_S }) end
  if shut then
    kept.prevented = kept.prevented + 1
    BREAKER.put(row.job, kept)
  end
  if not stops then return nil end
  finish(row, rule.when_open == 'fail' and FAILURE or REJECTED, BREAKER.BY)
  return ended(row)
end

-- The run is granted: if its job's breaker was open, it is the one that tries.
function BREAKER.grants(row, limits)
  if not BREAKER.rule_for(row, limits) then return end
  local kept = BREAKER.get(row.job)
  if kept.state == BREAKER.OPEN and kept.retry_at <= math.max(now, row.not_before) then
    kept.state, kept.probe, kept.since = BREAKER.HALF_OPEN, row.run, now
    BREAKER.put(row.job, kept)
  end
end
