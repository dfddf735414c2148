-- What a script says: an answer is a word and its fields, by name; and how a bad row ends an operation.

-- A row that no node wrote: the operation ends here, with the answer "bad". Nothing may have been written before.
local function bad(what, why) error({ bad = 'the row of ' .. what .. ' is bad: ' .. why }) end

local function answer(word, fields)
  local reply = { whose, word }
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
