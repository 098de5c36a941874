-- Takes, renews or lets go of a claim that one stream at a time may have.
-- KEYS  the claim
-- ARGV  who, for how long in ms (0: let go), channel, message that wakes others when it is let go ('': nobody)
-- Answers {now, whether it is theirs (1)}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local mine = redis.call('GET', KEYS[1]) == ARGV[1]
if ARGV[2] == '0' then
  if mine then
    redis.call('DEL', KEYS[1])
    if ARGV[4] ~= '' then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
  end
  return {now, 0}
end
if mine then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {now, 1}
end
return {now, redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0}
