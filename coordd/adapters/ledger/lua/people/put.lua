-- put: rows of an export. The caller has checked them; the next reader finds a ledger that went back.
--
-- KEYS and the first ARGV: shared/begin.lua. Then:
--   rows...           text; JSON, one row each
-- Answers:
--   ok                ; they are there
--   bad               by; a row that is needed is damaged: which, and how
--
-- When the memory is full: refused
-- Needs: rows runs jobs

-- Rows of an export; the caller has checked them. Whoever reads them next finds a ledger that went back.
for i = at + 1, #ARGV do
  local row = cjson.decode(ARGV[i])
  if row.kind == 'run' then
    put_run(row)
  elseif row.kind == 'attempt' then
    put_attempt(row)
  elseif row.kind == 'hold' then
    put_hold(row.key, row.version, row.by, row.uid, row['until'], row.note, row.at)
  else
    put_job(row)
    -- Of an older version's export, cjson has none of these.
    if (row.fires or '') ~= '' then hset(prefix .. 'fires', row.job, row.fires) end
    if (row.first_heard or 0) > 0 then hset(prefix .. 'first-heard', row.job, exact(row.first_heard)) end
    if (row.succeeded_at or 0) > 0 then hset(prefix .. 'succeeded', row.job, exact(row.succeeded_at)) end
    for _, past in ipairs(row.activations or {}) do
      local sequence, digest, schedule, activated_at, counts_from, by = unpack(past)
      put_activation({
        job = row.job, sequence = sequence, digest = digest, schedule = schedule, activated_at = activated_at,
        counts_from = counts_from,
      }, by)
    end
    if row.digest ~= '' and not was_activated(row.job, row.digest) then put_activation(row, 'import') end
  end
end
hset(prefix .. 'meta', 'epoch', MARKS.IMPORTED)
return answer(OK)
