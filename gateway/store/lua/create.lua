-- Creates a task, its operation and the call's parameters: all or nothing.
-- KEYS  task, operation, arguments, tombstone, active of owner, active of tenant, index, due, watch, list, switches,
--       ledger, idempotency (the operation again: the call has no key), marker of the store
-- ARGV   1 member                2 task head            3 task state          4 hidden
--        5 operation head        6 arguments            7 task expiry         8 operation expiry (0: none)
--        9 arguments expiry     10 tombstone expiry    11 tombstone          12 deadline
--       13 limit of owner       14 limit of tenant     15 schema             16 not after
--       17 creation time        18 ledger score        19 id                 20 digest of the arguments
--       21 how long the key is good for in ms, while the work is under way ('': as long as the ledger entry)
--       22 whether the switches do not concern it (1)  23 tool               24 tenant
--       25 to 27 fields of the switches of the upstream, the tool and the tenant
--       28 whether it must never be sent twice (1)
-- Answers {now, verdict, which}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local member = ARGV[1]
local task_expiry = tonumber(ARGV[7])
local named = KEYS[13] ~= KEYS[2]

-- The store may have been frozen: whoever asked has been told by now that nothing was started.
if now > tonumber(ARGV[16]) then return {now, 'late', ''} end

if redis.call('EXISTS', KEYS[2]) == 1 then return {now, 'created', ''} end -- the answer to the first attempt was lost

-- An effect that has a name is begun once. What was never sent may be begun anew.
local function begun()
  local known = redis.call('HMGET', KEYS[13], 'id', 'ad', 'op')
  if not known[1] then return nil end
  local state = redis.call('HGET', known[3], 'st')
  if not state or state == 'dropped' then return nil end
  if ARGV[21] ~= '' and (state == 'answered' or state == 'reconciled') then return nil end
  return {now, known[2] == ARGV[20] and 'exists' or 'conflict', known[1]}
end

-- A switch that cannot be read blocks; the one of everything has to be there.
local function blocked()
  local found = redis.call('HMGET', KEYS[11], 'all', ARGV[25], ARGV[26], ARGV[27])
  if not found[1] then return 'all' end
  for i, scope in ipairs({'all', ARGV[25], ARGV[26], ARGV[27]}) do
    if found[i] and string.sub(found[i], 1, 1) ~= '0' then return scope end
  end
  return nil
end

-- Nothing is written before what a store without memory refuses: a script that has written is not refused any more.
local function full(key, limit)
  return redis.call('ZCOUNT', key, '(' .. now, '+inf') >= limit
end

if named then
  local found = begun()
  if found then return found end
end
if ARGV[22] ~= '1' then
  local scope = blocked()
  if scope then return {now, 'switch', scope} end
end
if full(KEYS[5], tonumber(ARGV[13])) then return {now, 'principal', ''} end
if full(KEYS[6], tonumber(ARGV[14])) then return {now, 'tenant', ''} end

-- An index lives as long as its longest member.
local function index(key, expiry, score)
  redis.call('ZADD', key, score or expiry, member)
  if redis.call('PTTL', key) < expiry - now then redis.call('PEXPIREAT', key, expiry) end
end

local epoch = ARGV[28] == '1' and standing(KEYS[14], now) or '-'
redis.call('HSET', KEYS[1], 'v', 1, 'st', ARGV[3], 'hid', ARGV[4], 'sc', ARGV[15], 'head', ARGV[2])
redis.call('PEXPIREAT', KEYS[1], task_expiry)
redis.call('HSET', KEYS[2], 'v', 1, 'st', 'planned', 'fn', 0, 'hd', '', 'dl', ARGV[12], 'sc', ARGV[15],
  'head', ARGV[5], 'ep', epoch, 'ex', ARGV[22], 'tl', ARGV[23], 'tn', ARGV[24], 'oc', 'pending')
if ARGV[8] ~= '0' then redis.call('PEXPIREAT', KEYS[2], ARGV[8]) end
redis.call('SET', KEYS[3], ARGV[6], 'PXAT', ARGV[9])
redis.call('SET', KEYS[4], ARGV[11], 'PXAT', ARGV[10])
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', now)
index(KEYS[5], math.max(task_expiry, tonumber(ARGV[12])))
index(KEYS[6], math.max(task_expiry, tonumber(ARGV[12])))
if ARGV[4] == '0' then
  redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', now)
  index(KEYS[7], task_expiry)
  index(KEYS[10], task_expiry, ARGV[17])
end
if named then
  redis.call('DEL', KEYS[13])
  redis.call('HSET', KEYS[13], 'id', ARGV[19], 'ad', ARGV[20], 'op', KEYS[2])
  if ARGV[21] ~= '' then redis.call('PEXPIRE', KEYS[13], ARGV[21]) else redis.call('PEXPIREAT', KEYS[13], ARGV[8]) end
end
redis.call('ZREMRANGEBYSCORE', KEYS[12], '-inf', now)
redis.call('ZADD', KEYS[12], ARGV[18], member)
redis.call('ZADD', KEYS[8], now, member)
redis.call('ZADD', KEYS[9], ARGV[12], member)
return {now, 'created', ''}
