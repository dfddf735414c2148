-- rerun: open one run because a person has run its parent once more, with its children (core/ledger/rerun).
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   root              text; the run that a person has run once more
--   registration      11 values; shared/registrations.lua
-- Answers:
--   ok                state, attempt; it is open, and due now
--   exists            state, by; nothing to do for it. by: why, if it does not run
--   limited           by, in_s; not now: a parent, its own earlier run, a suspension or another run of the job
--   finished          ; the plan is over
--   differs           ; another definition of the job counts
--   outdated          ; the caller goes by other rules than those in force
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs registrations moves

local WAITS, READY, BEGUN, LEFT = 'waits', 'ready', 'begun', 'left'
local ENDS = { [SUCCESS] = true, [FAILURE] = true, done = true }
local TOLD_MAX = 700

local root, of = take(), take_registration()
if recovering_s() > 0 then return recovering() end
local version, by, note = string.match(get_hold(OF.RERUN .. root) or '', '^(%S+) %S+ %S+ %S+\n([^\n]*)\n(.*)$')
if not version then return answer(FINISHED) end

-- A damaged plan has no items: nothing runs.
local function read(text)
  local items = cjson.decode(text)
  for _, item in ipairs(items) do
    assert(#item == 5 and type(item[1]) == 'string' and type(item[2]) == 'number')
    assert(ENDS[item[3]])
    for _, of_job in ipairs(item[5]) do
      for _, one in ipairs(of_job) do assert(type(one[1]) == 'string' and type(one[2]) == 'number') end
    end
  end
  return items
end

local readable, items = pcall(read, note)
if not readable then items = {} end
local mark = OF.RERUN_OF .. root .. '/' .. version .. ' by ' .. by

local function group_of(run) return string.match(run, '^(.+)~%d+$') or run end

local function ids(run, count)
  if count == 0 then return { run } end
  local found = {}
  for number = 0, count - 1 do found[#found + 1] = run .. '~' .. exact(number) end
  return found
end

-- The rows of a run or a group, and how many there may be.
local known = {}
local function rows_of(run, count)
  if not known[run] then
    local found = { of = count == 0 and 1 or count }
    for _, id in ipairs(ids(run, count)) do found[#found + 1] = get_run(id) end
    known[run] = found
  end
  return known[run]
end

-- Whether a run or a group has ended, and as it should (core/groups/expand.py): a group succeeds with all its members, and
-- fails with one of them.
local function fits(found, on)
  if #found < found.of then return false end
  local succeeded, failed = true, false
  for _, row in ipairs(found) do
    succeeded = succeeded and row.state == SUCCESS
    failed = failed or row.state == FAILURE or row.state == LOST
  end
  if on == SUCCESS then return succeeded end
  return failed or on == 'done'
end

-- A run that is pending because its parents were absent is never granted.
local function has_begun(row, ended_at)
  if string.sub(row.by, 1, #OF.OPENED) == OF.OPENED and string.sub(row.by, -#mark) == mark then return true end
  local absent = string.sub(row.by, 1, #OF.ABSENT) == OF.ABSENT
  return row.state == PENDING and not absent or row.state == RETRY or row.token ~= 0 and row.received_at >= ended_at
end

local fates, first = {}, group_of(root)

-- READY once its parents have ended as they should, one of them in this re-run; WAITS or LEFT otherwise.
local function awaited(item)
  local newly, ended_at, enough = {}, 0, true
  local own, ran = rows_of(item[1], item[2]), true
  if #own < own.of then ran = false end
  for _, row in ipairs(own) do ran = ran and string.sub(row.by, 1, #OF.ABSENT) ~= OF.ABSENT end
  for _, of_job in ipairs(item[5]) do
    local came, again = false, false
    for _, one in ipairs(of_job) do
      local fate, found = fates[one[1]], rows_of(one[1], one[2])
      local waits = fate and (fate.word == WAITS or fate.word == READY)
      for _, row in ipairs(found) do waits = waits or not TERMINAL[row.state] end
      if waits then return { word = WAITS, because = one[1] .. ' has not ended' } end
      local fitting = fits(found, item[3])
      came = came or fitting
      if one[1] == first or fate and fate.word == BEGUN then
        again = true
        if fitting then
          newly[#newly + 1] = one[1]
          for _, row in ipairs(found) do ended_at = math.max(ended_at, row.ended_at) end
        end
      end
    end
    enough = enough and (came or ran and not again)
  end
  if not newly[1] then return { word = LEFT, because = 'its parents have not ended as they should' } end
  if not enough and item[4] ~= 1 then
    return { word = LEFT, because = 'not all of its parents have ended as they should' }
  end
  return { word = READY, because = '', parents = newly, ended_at = ended_at }
end

local function fate_of(item)
  local fate = awaited(item)
  if fate.word ~= READY then return fate end
  local own, begun, stay = rows_of(item[1], item[2]), 0, 0
  for _, row in ipairs(own) do
    if has_begun(row, fate.ended_at) then
      begun = begun + 1
    elseif row.state == REVOKED then
      stay = stay + 1
    end
  end
  if begun + stay == own.of then
    fate.word = begun > 0 and BEGUN or LEFT
    if begun == 0 then fate.because = 'a person has revoked it' end
  end
  return fate
end

local function opened_by(parents)
  local told = OF.OPENED
  for _, run in ipairs(parents) do
    if #told + #run > TOLD_MAX then break end
    told = told .. (told == OF.OPENED and '' or ', ') .. run
  end
  return told
end

local function rerun_one(fate)
  local row = get_run(of.run)
  if fate.word == WAITS then return answer(LIMITED, { by = fate.because, in_s = BACKFILL.RETRY_S }) end
  if fate.word ~= READY or row and has_begun(row, fate.ended_at) then
    return answer(EXISTS, { state = row and row.state or '', by = fate.because })
  end
  if row and not TERMINAL[row.state] then
    return answer(LIMITED, { by = row.run .. ' has not ended', in_s = BACKFILL.RETRY_S })
  end
  if identity_from() == NEVER or of.scheduled == 1 and of.identity_from ~= identity_from() then return answer(OUTDATED) end
  local job = job_row(of.job)
  if job.digest ~= of.digest then return answer(DIFFERS) end
  if nothing_starts(job) then return answer(LIMITED, { by = 'suspended', in_s = BACKFILL.UNSETTLED_S }) end
  local other = BACKFILL.in_the_way(of)
  if other then return answer(LIMITED, { by = 'overlap with ' .. other, in_s = BACKFILL.RETRY_S }) end
  if row then of.args = row.args end  -- of a group: its value
  local opened = BACKFILL.open_once_more(row or new_row(of), of, opened_by(fate.parents) .. mark)
  return answer(OK, { state = RETRY, attempt = opened.attempt })
end

local named, wanted = group_of(of.run), nil
for _, item in ipairs(items) do
  fates[item[1]] = fate_of(item)
  if item[1] == named then
    for _, id in ipairs(ids(item[1], item[2])) do
      if id == of.run then wanted = item end
    end
  end
end
local said
if wanted then
  said = rerun_one(fates[named])
  if said[2] == OK then
    known[named] = nil
    fates[named] = fate_of(wanted)
  end
else
  said = answer(EXISTS, { by = 'it is not in the plan' })
end
for _, fate in pairs(fates) do
  if fate.word == WAITS or fate.word == READY then return said end
end
drop_hold(OF.RERUN .. root)
return said
