-- adopt: this revision of the job definitions is in force from now on: all of them are activated in this step.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   number            number; of the revision
--   digest            text; of its job files
--   replaces          number; of the revision that the caller found in force; 0: none
--   by                text; who or what brought it
--   uid               number; the same person
--   jobs              text; a line for each job: its name, the digest of the definition, the digest of its schedule
--   newest            0 or 1; 1: no later revision was published, so every other definition is withdrawn
-- Answers:
--   ok                token; its number
--   differs           token; another one stays in force: its number, or 0
--   outdated          ; the old rules are in force, which know of no definitions
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs fires

local number, digest, replaces, by, uid, jobs, newest =
  take_number(), take(), take_number(), take(), take_number(), take(), take() == '1'
if recovering_s() > 0 then return recovering() end
if identity_from() == NEVER then return answer(OUTDATED) end
local in_force, as = OF.revision_in_force()
if in_force == number and as == digest then return answer(OK, { token = number }) end
if in_force >= number or in_force ~= replaces then return answer(DIFFERS, { token = in_force }) end
local listed, gone = {}, {}
for name in string.gmatch(jobs, '(%S+) %S+ %S+') do
  listed[name] = true
  get_job(name)  -- a bad row ends the script before a write
end
local function is_sound(name)
  local row, fault = look_at_job(name)
  local _, wrong = read_row(prefix .. 'standing:' .. name, COLUMNS.STANDING)
  return row and not fault and not wrong
end

-- An older revision must not withdraw what a newer one has; and a job with a bad row begins nothing by schedule.
for _, name in ipairs(newest and redis.call('SMEMBERS', prefix .. 'jobs') or {}) do
  if not listed[name] and is_sound(name) then
    local job = get_job(name)
    if job.digest ~= '' or OF.was_scheduled(job) then gone[#gone + 1] = name end
  end
end
table.sort(gone)
for name, defined, schedule in string.gmatch(jobs, '(%S+) (%S+) (%S+)') do
  activate_now(name, defined, schedule, 'person', by, 0, 0, '')
end
-- The caller may not know of all definitions that the ledger has (core/ledger/revision/rule.py).
for _, name in ipairs(gone) do activate_now(name, OF.GONE, OF.GONE, 'person', by, 0, 0, '') end
put_hold(OF.REVISION, 0, by, uid, 0, exact(number) .. ' ' .. digest, now)
return answer(OK, { token = number })
