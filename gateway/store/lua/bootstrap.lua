-- Sets a store up that no gateway has used before: its marker, and the switch of everything. A switch that is missing
-- in a store that was set up stays missing, and blocks, until an operator says what it should be.
-- KEYS  marker, switches
-- ARGV  id of the store, schema, number of shards, record of the switch
-- Answers {now, number of shards of the store, up to which schema its records were brought (0: never)}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local known = redis.call('HMGET', KEYS[1], 'shards', 'entered')
if known[1] then return {now, tonumber(known[1]), tonumber(known[2] or 0)} end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'schema', ARGV[2], 'shards', ARGV[3], 'created', now)
redis.call('HSETNX', KEYS[2], 'all', ARGV[4])
return {now, tonumber(ARGV[3]), 0}
