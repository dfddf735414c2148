-- The open rows in pages, or what has changed in them, as a sweep sees them. Its reply is a list without names:
--
--   whose          text; as in every answer
--   open           its word
--   now            Unix seconds
--   recovering_s   seconds
--   jobs           of each: name, horizon, last fire time, suspended, fence, sequence, digest, counts_from; or of one
--                  that cannot be used: name, bad, what is wrong with it
--   runs           of each: the columns COLUMNS.OPEN
--   after          (not_before, run), after which the next page begins; empty: there is no more
--   identity_from  Unix seconds; which rules are in force
--   holds          of each: its key, its text (shared/jobs.lua)
--   cursor         text; what changes from now on follows it. Empty: in a further page
--   gone           runs that changed, or were named, and have no open row
--   more           1 or 0: further changes follow the cursor; empty: this is a page of all open rows

-- The reply with these runs.
local function told_page(jobs, names, after, holds, cursor)
  local runs = {}
  for _, run in ipairs(names) do
    runs[#runs + 1] = redis.call('HMGET', prefix .. 'run:' .. run, unpack(COLUMNS.OPEN))
  end
  return {
    whose(), 'open', exact(now), exact(recovering_s()), jobs, runs, after, exact(identity_from()), holds, cursor or '',
    {}, '',
  }
end

-- One page of the open rows, from a rank on; and where the next one begins.
local function open_page(jobs, from, limit, holds, cursor)
  local names, after = redis.call('ZRANGE', prefix .. 'open', from, from + limit - 1), {}
  local last = names[limit]
  if last then after = { redis.call('ZSCORE', prefix .. 'open', last), last } end
  return told_page(jobs, names, after, holds, cursor)
end
