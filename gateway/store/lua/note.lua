-- Keeps what an upstream said during a call, and wakes whoever tells the client: all or nothing, so that it has an end.
-- KEYS  the notes
-- ARGV  the note, how many are kept at most, for how long in ms, channel, message that wakes others
-- Answers {now}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -ARGV[2], -1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return {now}
