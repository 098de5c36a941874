-- Creates a task, its operation and the call's parameters: all or nothing.
-- KEYS  task, operation, arguments, tombstone, active of owner, active of tenant, index, due, watch, list
-- ARGV  member, task head, task state, hidden, operation head, arguments, task expiry, operation expiry (0: none),
--       arguments expiry, tombstone expiry, tombstone, deadline, limit of owner, limit of tenant, schema, not after,
--       creation time
-- Answers {now, verdict}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local member = ARGV[1]
local task_expiry = tonumber(ARGV[7])

-- The store may have been frozen: whoever asked has been told by now that nothing was started.
if now > tonumber(ARGV[16]) then return {now, 'late'} end

if redis.call('EXISTS', KEYS[2]) == 1 then return {now, 'created'} end -- the answer to the first attempt was lost

local function full(key, limit)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  return redis.call('ZCARD', key) >= limit
end

if full(KEYS[5], tonumber(ARGV[13])) then return {now, 'principal'} end
if full(KEYS[6], tonumber(ARGV[14])) then return {now, 'tenant'} end

-- An index lives as long as its longest member.
local function index(key, expiry, score)
  redis.call('ZADD', key, score or expiry, member)
  if redis.call('PTTL', key) < expiry - now then redis.call('PEXPIREAT', key, expiry) end
end

redis.call('HSET', KEYS[1], 'v', 1, 'st', ARGV[3], 'hid', ARGV[4], 'sc', ARGV[15], 'head', ARGV[2])
redis.call('PEXPIREAT', KEYS[1], task_expiry)
redis.call('HSET', KEYS[2], 'v', 1, 'st', 'planned', 'fn', 0, 'hd', '', 'dl', ARGV[12], 'sc', ARGV[15],
  'head', ARGV[5])
if ARGV[8] ~= '0' then redis.call('PEXPIREAT', KEYS[2], ARGV[8]) end
redis.call('SET', KEYS[3], ARGV[6], 'PXAT', ARGV[9])
redis.call('SET', KEYS[4], ARGV[11], 'PXAT', ARGV[10])
index(KEYS[5], math.max(task_expiry, tonumber(ARGV[12])))
index(KEYS[6], math.max(task_expiry, tonumber(ARGV[12])))
if ARGV[4] == '0' then
  redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', now)
  index(KEYS[7], task_expiry)
  index(KEYS[10], task_expiry, ARGV[17])
end
redis.call('ZADD', KEYS[8], now, member)
redis.call('ZADD', KEYS[9], ARGV[12], member)
return {now, 'created'}
