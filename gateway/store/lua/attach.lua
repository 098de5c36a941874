-- Keeps where the answer to a call that was sent can be had, while its holder is the holder.
-- KEYS  operation, what is kept
-- ARGV  fence, value, for how long in ms
-- Answers {now, whether it was kept (1)}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local operation = redis.call('HMGET', KEYS[1], 'st', 'fn')
if operation[1] ~= 'sent' or operation[2] ~= ARGV[1] then return {now, 0} end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {now, 1}
