-- Writes an operation that names nobody any more, and removes its task with everything that belongs to it.
-- KEYS  operation, task, result, arguments, tombstone, index, list, awaiting input, watch
-- ARGV  member, version of the operation, its new head, its new version, schema
-- Answers {now, verdict}: ok, stale (it has changed), busy (somebody holds it) or gone.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local operation = redis.call('HMGET', KEYS[1], 'v', 'hd')
if not operation[1] then return {now, 'gone'} end
if operation[1] ~= ARGV[2] then return {now, 'stale'} end
if operation[2] ~= '' then return {now, 'busy'} end
redis.call('HSET', KEYS[1], 'head', ARGV[3], 'v', ARGV[4], 'sc', ARGV[5])
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
for i = 6, 9 do redis.call('ZREM', KEYS[i], ARGV[1]) end
return {now, 'ok'}
