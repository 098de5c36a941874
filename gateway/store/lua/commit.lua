-- Writes both records if nobody was faster: compare-and-set on both versions and on the holder's fence.
-- KEYS  task, operation, result, arguments, tombstone, active of owner, active of tenant, running at upstream, index,
--       due, watch, list, awaiting input, ledger, unknown outcomes, idempotency (the operation again: none, or it ends
--       by itself), what is to be exported, marker of the store
-- ARGV   1 member               2 task version ('': known to be gone)   3 operation version
--        4 fence ('': not a holder)
--        5 task head ('': unchanged)       6 new task version           7 task state       8 hidden
--        9 operation head ('': unchanged) 10 new operation version     11 operation state
--       12 body ('': none)      13 task expiry      14 operation expiry (0: none)
--       15 tombstone            16 tombstone expiry
--       17 placed: whether the operation's place in the indexes changes (1)
--       18 active (1)           19 due at ('': not due)                20 watch at ('': not watched)
--       21 in flight: whether the holder keeps it (1)                  22 channel           23 message
--       24 schema               25 not after       26 creation time          27 ledger score
--       28 what is known of the effect             29 to be exported (1)       30 holder
--       31 whether nobody can have taken the work from its holder, by the holder's own clock (1)
-- Answers {now, verdict}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local member = ARGV[1]

if now > tonumber(ARGV[25]) then return {now, 'late'} end

local operation = redis.call('HMGET', KEYS[2], 'v', 'fn', 'st', 'hd', 'ep')
if not operation[1] then return {now, 'gone'} end
local fence, ours = tonumber(operation[2]), tonumber(ARGV[4])
if ours and fence > ours then return {now, 'fenced'} end
if operation[1] ~= ARGV[3] then return {now, 'stale'} end

local task = redis.call('HGET', KEYS[1], 'v')
local expired = not task
if task and task ~= ARGV[2] then return {now, 'stale'} end

-- Nobody but its holder knows that work in a store that may have lost something was not sent. A holder whose lease has
-- lapsed does not: somebody else may have taken the work and sent it, and the store may have lost that too.
local knows = ours and ARGV[31] == '1'
if not knows and operation[3] == 'planned' and (ARGV[11] == 'dropped' or ARGV[11] == 'sent') then
  if doubted('planned', operation[5], (standing(KEYS[18], now))) then return {now, 'doubtful'} end
end
-- A fence that is older than the holder's own is one that the store forgot: nobody has taken the work over since.
if ours and fence < ours then redis.call('HSET', KEYS[2], 'fn', ARGV[4], 'hd', ARGV[30]) end
if knows and ARGV[11] == 'planned' and operation[5] ~= '-' then
  redis.call('HSET', KEYS[2], 'ep', (standing(KEYS[18], now)))
end

-- Whoever asks an authority about it goes on when others change the task.
local asking = ARGV[4] == '' and operation[3] == 'unknown' and ARGV[11] == 'unknown' and operation[4] ~= ''

-- An index lives as long as its longest member.
local function index(key, score)
  redis.call('ZADD', key, score, member)
  if redis.call('PTTL', key) < tonumber(ARGV[13]) - now then redis.call('PEXPIREAT', key, ARGV[13]) end
end

if ARGV[9] ~= '' then
  redis.call('HSET', KEYS[2], 'v', ARGV[10], 'st', ARGV[11], 'sc', ARGV[24], 'head', ARGV[9], 'oc', ARGV[28])
  for _, key in ipairs({KEYS[2], KEYS[16]}) do
    if ARGV[14] == '0' then redis.call('PERSIST', key) else redis.call('PEXPIREAT', key, ARGV[14]) end
  end
  redis.call('ZADD', KEYS[14], ARGV[27], member)
  if ARGV[29] == '1' then redis.call('ZADD', KEYS[17], now, member) end
  -- Since when an outcome is unknown that will not be forgotten.
  if ARGV[14] == '0' then redis.call('ZADD', KEYS[15], 'NX', now, member) else redis.call('ZREM', KEYS[15], member) end
end
if not expired and ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'v', ARGV[6], 'st', ARGV[7], 'hid', ARGV[8], 'sc', ARGV[24], 'head', ARGV[5])
  redis.call('PEXPIREAT', KEYS[1], ARGV[13])
  redis.call('SET', KEYS[5], ARGV[15], 'PXAT', ARGV[16])
  if ARGV[12] ~= '' then redis.call('SET', KEYS[3], ARGV[12], 'PXAT', ARGV[13]) end
  if ARGV[8] == '0' then
    index(KEYS[9], ARGV[13])
    index(KEYS[12], ARGV[26])
    if ARGV[7] == 'input_required' then
      redis.call('ZREMRANGEBYSCORE', KEYS[13], '-inf', now)
      index(KEYS[13], ARGV[13])
    else
      redis.call('ZREM', KEYS[13], member)
    end
  end
end

if ARGV[17] == '1' then
  if ARGV[21] ~= '1' and not asking then
    redis.call('HSET', KEYS[2], 'hd', '')
    redis.call('ZREM', KEYS[8], member)
  end
  if ARGV[18] ~= '1' then
    redis.call('ZREM', KEYS[6], member)
    redis.call('ZREM', KEYS[7], member)
    redis.call('DEL', KEYS[4])
  end
  if ARGV[19] ~= '' then redis.call('ZADD', KEYS[10], ARGV[19], member) else redis.call('ZREM', KEYS[10], member) end
  if asking then
    -- its lease is looked at, as before
  elseif ARGV[20] ~= '' then
    redis.call('ZADD', KEYS[11], ARGV[20], member)
  else
    redis.call('ZREM', KEYS[11], member)
  end
end
if ARGV[23] ~= '' then redis.call('PUBLISH', ARGV[22], ARGV[23]) end
return {now, (expired and ARGV[2] ~= '') and 'expired' or 'ok'}
