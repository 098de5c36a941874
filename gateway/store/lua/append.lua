-- Keeps the next thing that a stream brought. A stream that was dropped meanwhile stays dropped: its first item names
-- the session that it belongs to, and is no note and no answer.
-- KEYS  the stream
-- ARGV  the item, for how long in ms, channel, message that wakes others
-- Answers {now, how many there are}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if string.sub(ARGV[1], 1, 1) ~= '"' and redis.call('EXISTS', KEYS[1]) == 0 then return {now, 0} end
local count = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return {now, count}
