-- Hands out entries of the ledger that are to be exported. Who takes them has them for a while; then they are due again.
-- KEYS  what is to be exported
-- ARGV  base of all keys, how many, for how long they are handed out (ms)
-- Answers {now, {member, version, head; '' for both: the entry is gone}, ...}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local answer = {now}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local found = redis.call('HMGET', ARGV[1] .. 'o:' .. member, 'v', 'head')
  if found[1] then
    redis.call('ZADD', KEYS[1], now + ARGV[3], member)
  else
    redis.call('ZREM', KEYS[1], member)
  end
  answer[#answer + 1] = {member, found[1] or '', found[2] or ''}
end
return answer
