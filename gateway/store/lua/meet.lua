-- Looks at the store that a process has come to, and whether it can be written to.
-- KEYS  marker of the store
-- ARGV  token of the last clean stop ('': none)
-- Answers {now, epoch, since when it lasts, what INFO tells ('': it is forbidden)}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('HSET', KEYS[1], 'met', now)
local epoch, since = standing(KEYS[1], now, ARGV[1])
local told = redis.pcall('INFO', 'server', 'replication', 'memory', 'persistence')
return {now, epoch, since, type(told) == 'string' and told or ''}
