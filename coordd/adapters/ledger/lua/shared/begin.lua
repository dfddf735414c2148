-- The beginning of every script, after the constants: how arguments are taken and numbers written, the time, what has
-- become of the ledger (the epoch, the quarantine), whose it is, and how it answers.
--
-- KEYS:
--   prefix                text; of all keys, "{coordd:<cluster>}:". The hash tag puts a whole cluster's ledger on one
--                         node of a Redis Cluster: the sweep reads all open rows in one step, and a claim looks at
--                         other runs of the job
-- ARGV:
--   quarantine_s          seconds; the longest lease that the caller knows of, and what a replica may lag behind
--   short_quarantine_s    seconds; where nobody has ever seen a ledger
--   seen                  text; the mark that the caller saw last ("": it never saw a ledger, "-": it cannot tell)
--   pin                   text; the identity that the caller has used ("": none yet)
--   at_home               1 or 0; whether that was at this address
--   proposal              text; the identity that the caller gives to a ledger that has none
-- Then come the operation's own arguments: ARGV[at + 1] on.
--
-- An error ends the script before anything is written: READONLY (a replica), CLOSED, SCHEMA or FOREIGN.
--
-- Redis does not undo what a script did before it failed. So whatever can be wrong with the arguments is checked by
-- the caller, and the first write is always one that a full memory refuses: an hset. But ``passes`` (a line before this
-- file says which operation may) is true for what a running job needs, and for what makes room or only changes rows.

local prefix = KEYS[1]

local at = 6
local function take() at = at + 1; return ARGV[at] end
local function take_number() return tonumber(take()) end

-- A full Redis refuses a script's first write if that may need memory, and lets a script go on that has written. To
-- delete a missing key needs no memory, and counts as a write: every version of Redis lets pass what follows.
local function hset(key, ...)
  if passes then
    redis.call('DEL', prefix .. 'nothing')
    passes = false
  end
  redis.call('HSET', key, ...)
end

-- Numbers as text, so that they come back exactly: tokens have 16 digits, which neither %g nor cjson keeps.
local function exact(value)
  if value == math.floor(value) and math.abs(value) < TOKEN_MAX then return string.format('%.0f', value) end
  return string.format('%.17g', value)
end

local function text(value)
  if type(value) == 'number' then return exact(value) end
  return value
end

-- ---- the time, and what has become of the ledger

local stamp = redis.call('TIME')
local now = tonumber(stamp[1]) + tonumber(stamp[2]) / 1000000

local info = redis.call('INFO', 'replication')
if string.match(info, 'role:(%a+)') ~= 'master' then
  -- A script that finds nothing to write would answer from a replica, which may lag behind.
  return redis.error_reply('READONLY this server is a replica')
end
local replid = string.match(info, 'master_replid:(%x+)') or 'hidden'
local replicas = tonumber(string.match(info, 'connected_slaves:(%d+)') or '0')

local meta = redis.call('HMGET', prefix .. 'meta', 'schema', 'epoch', 'open_at', 'mark', 'short',
  'identity', 'predecessor', 'provisional', 'closed', 'grants', 'vouching', 'called_at', 'founding', 'replicated')
if meta[9] then return redis.error_reply('CLOSED ' .. meta[9]) end
if meta[1] and meta[1] ~= SCHEMA then return redis.error_reply('SCHEMA ' .. meta[1]) end

local quarantine_s, short_quarantine_s, seen = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local open_at, mark, short = tonumber(meta[3] or '0'), meta[4] or '', meta[5] == '1'

-- ---- whose ledger this is (core/ledger/identity.py says why); before anything is written

local identity, predecessor, provisional = meta[6] or '', meta[7] or '', meta[8] == '1'
local pin, at_home, proposal = ARGV[4], ARGV[5] == '1', ARGV[6]
local gives_identity = ''
if pin ~= '' and identity ~= pin then
  local recovers = meta[2] ~= replid or open_at > now
  if at_home and (identity == '' or provisional and recovers) then
    gives_identity = pin
  elseif identity == '' or predecessor ~= pin then
    return redis.error_reply('FOREIGN ' .. identity)
  end
elseif identity == '' then
  gives_identity = proposal
end

-- ---- marks (core/ledger/marks/rule.py)

local marks = {
  grants = tonumber(meta[10] or '0'), called_at = tonumber(meta[12] or '0'), founding = tonumber(meta[13] or '0'),
}

-- A member, as text: from when on it may claim, when it called last, how long it may be silent.
function marks.member(kept)
  local claims_at, seen_at, silence_s = string.match(kept or '', '^(%S+) (%S+) (%S+)$')
  if not claims_at then return nil end
  return { claims_at = tonumber(claims_at), seen_at = tonumber(seen_at), silence_s = tonumber(silence_s) }
end

function marks.is_there(one, at_s, more_s) return at_s - one.seen_at <= one.silence_s + (more_s or 0) end

-- What the life before has kept, if its loss can be told from marks; else "".
function marks.went_back()
  local unsplit = string.match(info, 'second_repl_offset:(-?%d+)') == '-1' and replicas == 0 and meta[14] ~= mark
  local is_telling = unsplit and mark ~= '' and meta[2] ~= MARKS.IMPORTED and marks.founding == 0
    and open_at <= marks.called_at and marks.called_at <= now and now <= marks.called_at + MARKS.NEWCOMER_S
  local there, members = {}, is_telling and redis.call('HGETALL', prefix .. 'members') or {}
  for i = 1, #members, 2 do
    local one = marks.member(members[i + 1])
    if one and marks.is_there(one, marks.called_at) then there[#there + 1] = members[i] end
  end
  if not there[1] then return '' end
  return exact(marks.called_at) .. ' ' .. mark .. ' ' .. exact(marks.grants) .. ' ' .. table.concat(there, ' ')
end

function marks.read(kept)
  local of, called_at, life, grants, awaited = string.match(kept or '', '^(%S+) (%S+) (%S+) (%S+) ?(.*)$')
  marks.kept = of == mark and { at = tonumber(called_at), life = life, grants = tonumber(grants), awaited = awaited }
end

-- How long this node may not claim yet (Marking._newcomer_s). Nobody waits where no node sweeps.
function marks.newcomer_s(host)
  local one = marks.member(redis.call('HGET', prefix .. 'members', host))
  if one and marks.is_there(one, now) then return math.min(MARKS.NEWCOMER_S, math.max(0, one.claims_at - now)) end
  return redis.call('EXISTS', prefix .. 'members') == 1 and MARKS.NEWCOMER_S or 0
end

-- One more grant.
function marks.count()
  marks.grants = marks.grants + 1
  hset(prefix .. 'meta', 'grants', exact(marks.grants))
end

-- One more change that a sweep shows, of a run or a job ("run:", "job:" and its name; core/ledger/feed/rule.py): of each
-- the newest is remembered.
function marks.number(name)
  local number = tonumber(redis.call('HGET', prefix .. 'meta', 'changes') or '0') + 1
  hset(prefix .. 'meta', 'changes', exact(number))
  redis.call('ZADD', prefix .. 'changed', exact(number), name)
  redis.call('ZREMRANGEBYSCORE', prefix .. 'changed', '-inf', exact(number - MARKS.FEED_MAX))
end

function marks.keep(kept)
  marks.read(kept)
  hset(prefix .. 'meta', 'vouching', kept)
end

local function remember()
  hset(prefix .. 'meta', 'schema', SCHEMA, 'epoch', replid, 'open_at', exact(open_at), 'mark', mark,
    'short', short and '1' or '0', 'quarantine_s', exact(quarantine_s))
end

-- There was a ledger before this one, or a caller knows of a longer lease: the quarantine lasts its whole length,
-- counted from its beginning.
local function lengthen()
  local full = tonumber(mark) / 1000000 + quarantine_s
  if short or full > open_at then
    short = false
    open_at = math.max(open_at, full)
    remember()
  end
end

if meta[2] ~= replid then
  -- A promoted replica, a restarted server, a restored or an emptied data set: it may have lost its last writes.
  -- If neither the server nor this caller has seen a ledger, the quarantine is short: another caller may have.
  local kept = marks.went_back()
  short = not meta[2] and seen == ''
  open_at = now + (short and short_quarantine_s or quarantine_s)
  mark = string.format('%.0f', now * 1000000)
  remember()
  marks.keep(kept ~= '' and mark .. ' ' .. kept or '')
elseif short and seen ~= '' and seen ~= '-' and seen ~= mark then
  lengthen()
elseif open_at > 0 and now >= open_at then
  open_at = 0  -- for good: the clock may be set back
  remember()
elseif open_at > 0 and now < tonumber(mark) / 1000000 then
  if open_at > now + quarantine_s then  -- the clock was set back: it lasts no longer for that
    open_at = now + quarantine_s
    remember()
  end
elseif open_at > 0 and not short then
  lengthen()
end

if not marks.kept then marks.read(meta[11]) end
if replicas > 0 and meta[14] ~= mark then hset(prefix .. 'meta', 'replicated', mark) end

-- The rest of the quarantine; also where it has ended early.
function marks.whole_s() return math.max(0, open_at - now) end

-- A grant that is not known here, later than what the ledger has kept: the quarantine lasts its whole time.
function marks.show_loss(token)
  if marks.kept and marks.whole_s() > 0 and token > marks.kept.at * 1000000 then marks.keep('') end
end

local function recovering_s() return marks.kept and marks.kept.awaited == '' and 0 or marks.whole_s() end

if gives_identity ~= '' then
  identity = gives_identity
  hset(prefix .. 'meta', 'identity', identity, 'provisional',
    pin == '' and recovering_s() > 0 and '1' or '0')
end

-- What each answer begins with: the mark of the ledger's life, its identity, the one that it continues, and how many
-- grants it has made.
local function whose() return mark .. ' ' .. identity .. ' ' .. predecessor .. ' ' .. exact(marks.grants) end

-- ---- what a script says: an answer is a word and its fields, by name; and how a bad row ends an operation

-- A row that no node wrote: the operation ends here, with the answer "bad". Nothing may have been written before.
local function bad(what, why) error({ bad = 'the row of ' .. what .. ' is bad: ' .. why }) end

local function answer(word, fields)
  local reply = { whose(), word }
  for name, value in pairs(fields or {}) do
    reply[#reply + 1] = name
    reply[#reply + 1] = text(value)
  end
  return reply
end

-- One operation; a bad row ends it with an answer that says so, and with no other row touched.
local function guarded(operation)
  local done, said = pcall(operation)
  if done then return said end
  if type(said) == 'table' and said.bad then return answer(BAD, { by = said.bad }) end
  -- An error of Redis itself begins with its word (OOM, READONLY): it leaves as it came.
  if type(said) == 'string' and string.find(said, '^%u+ ') then return { err = said } end
  error(said, 0)
end

local function recovering() return answer(RECOVERING, { left_s = recovering_s(), in_s = recovering_s() }) end
