-- prune: forget runs that ended long ago, oldest first. The horizon moves past each, so that none is opened again.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   keep_s            seconds; what ended longer ago is forgotten
--   limit             number; of runs, at the most. 0: nothing changes, but a ledger that writes no new row refuses it
-- Answers:
--   ok                token; how many were forgotten
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: passes
-- Needs: rows runs policies jobs fires

local function drop_run(row)
  local run, job = row.run, row.job
  redis.call('DEL', prefix .. 'run:' .. run, prefix .. 'attempts:' .. run)
  for _, state in ipairs({ '', row.state }) do
    local all, of_job = list_keys(job, state)
    redis.call('ZREM', all, run)
    redis.call('ZREM', of_job, run)
  end
  redis.call('ZREM', prefix .. 'ended', run)
  redis.call('ZREM', prefix .. 'open', run)
  redis.call('ZREM', prefix .. 'active:' .. job, run)
  redis.call('ZREM', prefix .. 'waiting:' .. job, run)
  redis.call('ZREM', prefix .. 'fired:' .. job, run)
  if row.scheduled == 1 and last_fire_at(job) < due_at(row) then marks.number('job:' .. job) end
end

local before, limit = now - take_number(), take_number()
-- With the limit 0 it changes nothing, and asks whether a new row would be written: a full memory refuses this.
if limit == 0 then redis.call('HSET', prefix .. 'meta', 'schema', SCHEMA) end
local count, from = 0, 0
while count < limit do
  -- Those that were revoked far ahead of their time stay; they are few.
  local runs = redis.call('ZRANGEBYSCORE', prefix .. 'ended', '-inf', '(' .. exact(before), 'LIMIT', from, 100)
  for _, run in ipairs(runs) do
    local row, fault
    if count < limit then row, fault = look_at_run(run) end
    if row and not fault and not (row.scheduled == 1 and due_at(row) >= before) then
      if row.scheduled == 1 then
        local job = job_row(row.job)
        forget_fires(row.job, due_at(row))
        if due_at(row) > job.horizon or job.fence == 0 then
          job.horizon = math.max(job.horizon, due_at(row))
          stand(job)
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
return answer(OK, { token = count })
