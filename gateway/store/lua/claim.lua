-- Hands work to a runner and renews the lease of its process. Every hand-over raises the operation's fence.
-- KEYS  due, watch, running at upstream, heartbeat of this process, switches
-- ARGV  base of all keys, process, lease ms, grace ms, time since which the process has been connected,
--       free slots, limit of running calls at the upstream, how many entries to look at, newest readable schema,
--       not after, upstream, whether to look if the server may evict (1)
-- Answers {now, epoch, whether the server may evict (1; -1: not looked),
--          {kind, member, task head or '', operation head, fence, arguments or ''}, ...}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local base, process = ARGV[1], ARGV[2]
local lease, grace, connected = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local slots, limit, batch = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local newest = tonumber(ARGV[9])
local free = slots

-- A store that was frozen runs this late: what the caller knew about its own connection is no longer true.
if now > tonumber(ARGV[10]) then return {now, 0, -1} end

local epoch, since = standing(base .. 'store', now)
local evicts = -1
if ARGV[12] == '1' then
  local told = redis.pcall('INFO', 'memory')
  local policy = type(told) == 'string' and string.match(told, 'maxmemory_policy:(%S+)') or 'noeviction'
  evicts = policy ~= 'noeviction' and 1 or 0
  if evicts == 1 then slots, free = 0, 0 end
end
local answer = {now, epoch, evicts}

-- The heartbeat outlives the lease, so that others can tell since when it has lapsed.
redis.call('SET', KEYS[4], now + lease, 'PX', lease + grace + 60000)

local function lease_end(holder)
  return tonumber(redis.call('GET', base .. 'hb:' .. holder) or 0)
end

-- A fence is a time: it comes never twice, not even in a store that lost what it gave out.
local function give(key, holder)
  local fence = math.max(tonumber(redis.call('HGET', key, 'fn')) + 1, t[1] * 1000000 + t[2])
  redis.call('HSET', key, 'hd', holder, 'fn', fence)
  return fence
end

local function hand(kind, member, key)
  local fence = give(key, process)
  redis.call('ZREM', KEYS[1], member)
  redis.call('ZADD', KEYS[2], now + lease, member)
  local deadline = tonumber(redis.call('HGET', key, 'dl'))
  local expiry = math.max(deadline, now + lease) + grace
  redis.call('ZADD', KEYS[3], expiry, member)
  if redis.call('PTTL', KEYS[3]) < expiry - now then redis.call('PEXPIREAT', KEYS[3], expiry) end
  local head = redis.call('HGET', base .. 't:' .. member, 'head') or ''
  local arguments = kind == 'start' and redis.call('GET', base .. 'a:' .. member) or ''
  answer[#answer + 1] = {kind, member, head, redis.call('HGET', key, 'head'), fence, arguments}
end

-- Work of a later release is left to a process that can read it, also where it has changed the task only.
local function readable(member)
  for _, kind in ipairs({'o:', 't:'}) do
    if tonumber(redis.call('HGET', base .. kind .. member, 'sc') or newest) > newest then return false end
  end
  return true
end

local function forget(member)
  redis.call('ZREM', KEYS[1], member)
  redis.call('ZREM', KEYS[2], member)
end

local function again(member, at)
  redis.call('ZADD', KEYS[2], at, member)
end

-- There is no room here: another process may have some.
local function elsewhere(member)
  again(member, now + math.min(lease, 1000))
end

local function look(member)
  local key = base .. 'o:' .. member
  local operation = redis.call('HMGET', key, 'st', 'hd', 'dl', 'fn', 'ep')
  local state, holder = operation[1], operation[2]
  local doubtful = doubted(state, operation[5], epoch)
  if state ~= 'planned' and state ~= 'sent' and state ~= 'accepted' and state ~= 'unknown' then
    return forget(member)
  end
  local deadline = tonumber(operation[3])
  if not readable(member) then return again(member, now + lease) end
  if holder == process then
    again(member, now + lease)
    local head = redis.call('HGET', base .. 't:' .. member, 'head') or ''
    local kind = doubtful and 'doubtful' or 'held'
    answer[#answer + 1] = {kind, member, head, redis.call('HGET', key, 'head'), operation[4], ''}
    return
  end
  local lapsed = holder == '' and 0 or lease_end(holder)
  if lapsed > now then return again(member, math.min(lapsed, now + lease)) end
  -- Whoever sent it may be alive, and has until then to say so.
  local at = math.max(lapsed, connected, doubtful and since or 0) + grace
  if doubtful then
    if now < at then return again(member, at) end
    return hand('doubtful', member, key)
  end
  if state == 'planned' then
    if now >= deadline then return hand('deadline', member, key) end
    -- Whoever held it may only have stood still: from now on it sends nothing.
    if holder ~= '' then give(key, '') end
    redis.call('ZREM', KEYS[3], member)
    redis.call('ZADD', KEYS[1], 'NX', now, member)
    return again(member, deadline)
  end
  if state == 'unknown' then
    if free == 0 then return elsewhere(member) end
    free = free - 1
    return hand('inquire', member, key)
  end
  if now < at then return again(member, at) end
  if state == 'sent' then return hand('lost', member, key) end
  -- What an upstream has taken is asked about for as long as it takes: that needs a slot.
  if free == 0 then return elsewhere(member) end
  free = free - 1
  hand('resume', member, key)
end

-- The switches hold back what has not been sent. One that cannot be read blocks; the one of everything has to be there.
local function on(value) return value and string.sub(value, 1, 1) ~= '0' end
local all = redis.call('HGET', KEYS[5], 'all')
local closed = not all or on(all) or on(redis.call('HGET', KEYS[5], 'upstream:' .. ARGV[11]))

-- What nobody has agreed to in time ends, and sends nothing.
local function unanswered(member, key)
  if redis.call('HGET', base .. 't:' .. member, 'st') ~= 'input_required' then return false end
  local approval = cjson.decode(redis.call('HGET', key, 'head')).approval
  return type(approval) == 'table' and type(approval.granted_ms) ~= 'number'
end

local function blocked(key)
  local what = redis.call('HMGET', key, 'ex', 'tl', 'tn')
  if what[1] == '1' then return false end
  if closed or not what[2] then return closed end
  local found = redis.call('HMGET', KEYS[5], 'tool:' .. ARGV[11] .. '/' .. what[2], 'tenant:' .. what[3])
  return on(found[1]) or on(found[2])
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, batch)) do look(member) end

redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
free = math.min(free, limit - redis.call('ZCARD', KEYS[3]), batch)
-- What is in doubt needs no slot.
if free > 0 or epoch > 1 then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, batch)) do
    local key = base .. 'o:' .. member
    local operation = redis.call('HMGET', key, 'st', 'ep')
    if operation[1] ~= 'planned' then
      forget(member)
    elseif doubted(operation[1], operation[2], epoch) then
      redis.call('ZREM', KEYS[1], member)
      again(member, now)
    elseif free <= 0 then
      break
    elseif blocked(key) and not unanswered(member, key) then
      redis.call('ZADD', KEYS[1], now + 1000, member)
    elseif readable(member) then
      hand('start', member, key)
      free = free - 1
    end
    if free <= 0 and epoch == 1 then break end
  end
end
return answer
