-- Who holds an attempt, and how long still.

local function mine(run, attempt, token, nonce)
  local row = get_run(run)
  if not row or row.attempt ~= attempt or row.token ~= token or row.nonce ~= nonce then return nil, row end
  return row
end

local function is_older(row, token)
  return not TERMINAL[row.state] and row.token < token
end

-- Of a run that is over: a person had asked for that attempt, and no record of it is left.
function OF.has_forgotten(row, run, attempt, token)
  if not row or is_older(row, token) then return true end
  return TERMINAL[row.state] and row.token < token and not get_attempt(run, attempt)
end

-- The answer to a grant that is not the current one: ``word``, or recovering where it was forgotten.
local function not_mine(run, attempt, token, word)
  if OF.has_forgotten(get_run(run), run, attempt, token) then
    -- Not a grant of this ledger's life: so there was one before it.
    if short and (token < tonumber(mark) or token > now * 1000000) then lengthen() end
    marks.show_loss(token)
    if marks.whole_s() > 0 then return answer(RECOVERING, { left_s = marks.whole_s(), in_s = marks.whole_s() }) end
  end
  return answer(word)
end

-- The lease ends further ahead than it lasts: the clock went back, or was ahead when it was granted.
local function was_set_back(row) return row['until'] - now > row.lease + CLOCK_EXACT_S end

-- Seconds that are left of a lease, never more than it lasts.
local function left(row) return row.token ~= 0 and not was_set_back(row) and row['until'] - now or 0 end

-- Past its end AND watched in silence for a whole lease by the claimant: the time here is a wall clock, and one step
-- of it would expire every lease at once. In a quarantine that has ended early none lapses: its last renewals may be
-- forgotten.
local function lapsed(row, watched)
  return marks.whole_s() <= 0 and (now >= row['until'] or was_set_back(row)) and watched.token == row.token and watched.beat == row.beat
    and watched.seconds >= row.lease * (1 + 2 * RHO)
end

local function held(row)
  return answer(HELD, {
    by = row.node, left_s = left(row), state = row.state, until_token = exact(row.token) .. ' ' .. exact(row.beat),
  })
end
