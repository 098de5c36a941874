-- Writes a record in the place of the one that was read, unless somebody was faster or it is gone.
-- KEYS  the record
-- ARGV  what was read, what takes its place, for how long in ms
-- Answers {now, whether it was written (1)}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {now, 0} end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {now, 1}
