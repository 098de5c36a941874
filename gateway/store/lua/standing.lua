-- Whether the store is still the one that it was. Written before each script that has to know.
-- Another server process, or one that followed another server in between, may have lost the latest writes: a failover,
-- a restart, a backup that was restored. Each time that happens begins an epoch, and operations tell of which they are.
-- `token` is the word that the last clean stop left behind (see clean.py): then nothing was lost. Where INFO is forbidden,
-- nobody can tell.
-- Answers the epoch, and since when it lasts.
local function standing(key, now, token)
  local known = redis.call('HMGET', key, 'run', 'replid', 'epoch', 'since', 'closed')
  local epoch, since = tonumber(known[3] or 1), tonumber(known[4] or 0)
  local told = redis.pcall('INFO', 'server', 'replication')
  if type(told) ~= 'string' then return epoch, since end
  local run, replid = string.match(told, 'run_id:(%w+)'), string.match(told, 'master_replid:(%w+)')
  if run == known[1] and replid == known[2] then return epoch, since end
  -- A server takes another name for what it writes also when its first replica comes or its last one has gone for long.
  local renamed = run == known[1] and string.find(told, 'master_replid2:0+%s') ~= nil
  local closed = known[5] and known[5] == token
  if known[1] and not renamed and not closed then epoch, since = epoch + 1, now end
  redis.call('HSET', key, 'run', run, 'replid', replid, 'epoch', epoch, 'since', since)
  redis.call('HDEL', key, 'closed')
  return epoch, since
end

-- Whether an operation that looks planned may have been sent by somebody of whom the store has forgotten it. `epoch` of
-- an operation is '-' where sending it twice does no harm.
local function doubted(state, of, epoch)
  return state == 'planned' and of ~= '-' and tonumber(of or 1) < epoch
end
