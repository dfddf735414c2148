-- Attempts that were lost, and runs that nobody launched in time (core/ledger/steps.py).

-- Seconds before the next attempt. From the run's second loss on there is a pause, if the lost one was short-lived.
local function pause(row)
  if row.relaunches < 2 or now - row.received_at >= SHORT_LIVED_S then return 0 end
  return RELAUNCH_PAUSE_S * 2 ^ math.min(row.relaunches - 2, RELAUNCH_DOUBLINGS_MAX)
end

local function relaunch(row, policy, reason)
  if row.cancel == 1 then
    finish(row, REVOKED, row.reason)
  elseif row.relaunches > policy.relaunches then
    finish(row, LOST, string.format('%s; lost %.0f times, no relaunch left', reason, row.relaunches))
  else
    again(row, LOST, pause(row), reason)
  end
end

-- A launched attempt whose end nobody knows: lost and tried again, or unknown and held for a person.
local function lose(row, reason)
  local policy = unpack_policy(row.policy)
  if policy.on_lost == 'hold' and row.state ~= RECEIVED then
    if row.state ~= UNKNOWN then
      move(row, UNKNOWN)
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
  local was = ended_as(row, reason)
  lose(row, reason)
  if row.state == RETRY then
    return answer(LOST, { attempt = row.attempt, in_s = due_in(row), ended = was })
  end
  if TERMINAL[row.state] then return answer(FINISHED, { state = row.state, attempt = row.attempt, ended = was }) end
  return held(row)
end

-- Nobody could launch it in time; ``digest`` is the definition of the node that says so.
local function missed(row, digest)
  local why = string.format('no node could launch it within %g s of its time (%.0f s late)',
    unpack_policy(row.policy).start_within_s, now - row.not_before)
  if row.digest ~= digest then why = why .. "; the job's definition has changed since" end
  finish(row, MISSED, why)
  return ended(row)
end
