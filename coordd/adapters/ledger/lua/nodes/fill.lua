-- fill: open one fire time for the backfill of a job (core/ledger/backfill/rule.py says why each rule is as it is).
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   plan              text; its id
--   left              1 or 0; 0: the plan has no further fire time, and the registration tells only the job
--   registration      11 values; shared/registrations.lua
-- Answers:
--   ok                state, attempt; it is open, and due now
--   exists            state; nothing to do for it
--   limited           by, in_s; not now: the plan's own limit, a suspension, or another run of the job
--   early             in_s; the schedule may still open it
--   finished          state; the plan has ended
--   differs           ; another definition of the job counts
--   outdated          ; the caller goes by other rules than those in force
--   recovering        left_s, in_s; the ledger went back, and waits this long for restorations
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs policies jobs registrations grants moves

local id, left, of = take(), take_number(), take_registration()
if recovering_s() > 0 then return recovering() end
local plan = BACKFILL.get(of.job)
if not plan or plan.id ~= id or plan.state ~= BACKFILL.RUNNING then return answer(FINISHED) end

-- The runs of the plan that have ended since. Retention forgets only what has ended.
local open = {}
for _, run in ipairs(plan.open) do
  local row = get_run(run)
  if row and not TERMINAL[row.state] then
    open[#open + 1] = run
  elseif not row or row.state == SUCCESS then
    plan.succeeded = plan.succeeded + 1
  else
    plan.failed = plan.failed + 1
  end
end
local changed = #open < #plan.open
plan.open = open
if plan.stop_after > 0 and plan.failed >= plan.stop_after then
  BACKFILL.finish(of.job, plan, BACKFILL.STOPPED)
elseif left == 0 and not plan.open[1] then
  BACKFILL.finish(of.job, plan, BACKFILL.DONE)
end
if plan.state ~= BACKFILL.RUNNING then return answer(FINISHED, { state = plan.state }) end

local function is_past()
  if of.fire_at < plan.begin or of.fire_at >= plan.ends then return true end
  if plan.cursor == 0 then return false end
  if plan.order == BACKFILL.OLDEST then return of.fire_at <= plan.cursor end
  return of.fire_at >= plan.cursor
end

local function is_wanted(row)
  if not TERMINAL[row.state] then return false end
  if plan.redo == BACKFILL.EVERY then return true end
  local never_begun = row.state == MISSED or row.state == REJECTED
  if plan.redo == BACKFILL.FAILED then
    return row.cancel == 0 and (never_begun or row.state == FAILURE or row.state == LOST)
  end
  return row.token == 0 and row.attempt == 0 and never_begun
end

local function fill_one()
  if identity_from() == NEVER or of.identity_from ~= identity_from() then return answer(OUTDATED) end
  local job = job_row(of.job)
  if job.digest ~= of.digest then return answer(DIFFERS) end
  if is_past() then return answer(EXISTS) end
  local mark = BACKFILL.BY .. plan.id .. ' by ' .. plan.by
  local row = get_run(of.run)
  if row and (row.by == mark or not is_wanted(row)) then return answer(EXISTS, { state = row.state }) end
  if not row and get_run(of.run .. '~0') then return answer(EXISTS) end  -- it has run as a group's members, or will
  if of.due > now or not row and not is_over(of.job, of.due) then
    return answer(EARLY, { in_s = BACKFILL.UNSETTLED_S })
  end
  if #plan.open >= plan.at_most then
    return answer(LIMITED, { by = 'at most ' .. exact(plan.at_most), in_s = BACKFILL.RETRY_S })
  end
  if nothing_starts(job) then return answer(LIMITED, { by = 'suspended', in_s = BACKFILL.UNSETTLED_S }) end
  local other = BACKFILL.in_the_way(of)
  if other then return answer(LIMITED, { by = 'overlap with ' .. other, in_s = BACKFILL.RETRY_S }) end
  local opened = BACKFILL.open_once_more(row or new_row(of), of, mark)
  plan.cursor, plan.opened = of.fire_at, plan.opened + 1
  plan.open[#plan.open + 1] = of.run
  changed = true
  return answer(OK, { state = RETRY, attempt = opened.attempt })
end

local said = left == 1 and fill_one()
  or answer(LIMITED, { by = 'its last runs have not ended', in_s = BACKFILL.RETRY_S })
if changed then BACKFILL.put(of.job, plan) end
return said
