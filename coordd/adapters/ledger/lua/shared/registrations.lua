-- What is known of a run before anybody has claimed it (core.ledger.requests.Registration), and its new row.
--
-- ARGV of a registration, in this order:
--   run              text; the run's id
--   job              text; its name
--   digest           text; of the job's definition
--   policy           text; words, as a row has them
--   fire_at          Unix seconds; the time that the run's id names
--   scheduled        1 or 0
--   args             text; JSON
--   by               text; who asked for it
--   age_s            seconds; how old the request for a triggered run is
--   due              Unix seconds; when a scheduled run is due, later by the job's jitter
--   identity_from    Unix seconds; from when on ids are made of the nominal time, as the caller knows it

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

-- No scheduled run that is due then can get a row any more.
local function is_over(name, due)
  local job = get_job(name)
  if not job or recovering_s() > 0 then return false end
  local defined = job.digest ~= '' and identity_from() ~= NEVER
  return due <= job.horizon or (defined and due <= math.min(job.counts_from, now))
end

local function new_row(of)
  -- A trigger is dated by the ledger: the clock of the node that took it may be off by hours.
  local fire_at = of.scheduled == 1 and of.fire_at or now - of.age_s
  local due = of.scheduled == 1 and of.due or fire_at
  return {
    run = of.run, job = of.job, digest = of.digest, args = of.args, policy = of.policy.packed,
    scheduled = of.scheduled, fire_at = fire_at, created_at = now, by = of.by,
    state = PENDING, attempt = 0, not_before = due, failures = 0, relaunches = 0,
    token = 0, nonce = '', node = '', lease = 0, ['until'] = 0, boot = '', beat = 0, commit_token = 0, cancel = 0,
    received_at = 0, started_at = 0, ended_at = 0, exit_code = '', application_id = '', reason = '',
    due = due,
  }
end

-- A run that has no row yet: the word for why it may not have one, if it is scheduled.
local function refused(job, of)
  if of.scheduled ~= 1 then return nil end
  local begin = identity_from()
  if of.identity_from ~= begin then return OUTDATED end
  if begin ~= NEVER and job.digest ~= '' then
    if of.digest ~= job.digest then return DIFFERS end
    if of.due <= math.min(job.counts_from, now) then return FINISHED end
    if now - of.due > LATE_S then
      local said = was_to_count_from(job.job)
      if of.due <= said and said <= now then return FINISHED end
    end
  end
  if of.due - now > CLAIM_AHEAD_S then return EARLY, of.due - now - CLAIM_AHEAD_S end
  return nil
end
