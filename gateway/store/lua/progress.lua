-- Notes the latest progress of a task that is under way; a record that is gone or done is left alone.
-- KEYS  task
-- ARGV  progress, channel, message
-- Answers {now, whether it was noted (1)}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local state = redis.call('HGET', KEYS[1], 'st')
if state ~= 'working' and state ~= 'input_required' then return {now, 0} end
redis.call('HSET', KEYS[1], 'pg', ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return {now, 1}
