-- Rows as hashes: reading one, writing what has changed of one; and names in the order of a sorted set.

-- A hash as a row; a column that an older version did not write is empty, one that a newer version wrote stays.
-- A field that should be a number and is not makes the row bad: its name is then the second answer.
local function read_row(key, columns)
  local values = redis.call('HMGET', key, unpack(columns))
  if not values[1] then return nil end
  local row, kept, fault = {}, {}, nil
  for i, column in ipairs(columns) do
    local value = values[i]
    if NUMBERS[column] then
      value = tonumber(value or '0')
      if not value or not (math.abs(value) <= TOKEN_MAX) then
        fault = column .. ': expected a number, found ' .. string.sub(values[i], 1, 60)
        value = 0
      end
    else
      value = value or ''
      if string.find(value, '%z') then fault = column .. ': a NUL character' end
      if #value > (LONG_BYTES_MAX[column] or TEXT_BYTES_MAX) then fault = column .. ': ' .. #value .. ' bytes' end
    end
    row[column], kept[column] = value, value
  end
  row.kept = kept
  return row, fault
end

-- Whether it wrote anything. Only what differs from ``kept``, what was read: a renewal touches four of a run's columns.
-- Of a new row ({}) that is every field that is not empty, which is how an absent column reads.
local function write_row(key, columns, row, field_prefix, kept)
  local flat, n = {}, 0
  for _, column in ipairs(columns) do
    local value = row[column]
    if not kept or value ~= (kept[column] or NUMBERS[column] and 0 or '') then
      flat[n + 1], flat[n + 2] = field_prefix .. column, text(value)
      n = n + 2
    end
    if kept then kept[column] = value end
  end
  if n > 0 then hset(key, unpack(flat)) end
  return n > 0
end

-- Names in the order of a sorted set, byte by byte: a comparison of Lua's goes by the server's language.
local function precedes(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end
