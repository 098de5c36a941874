-- Forgets entries that were exported. One that has changed since is due again at once.
-- KEYS  what is to be exported
-- ARGV  base of all keys, then member and exported version of each
-- Answers {now}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 2, #ARGV, 2 do
  local member = ARGV[i]
  local version = redis.call('HGET', ARGV[1] .. 'o:' .. member, 'v')
  if not version or version == ARGV[i + 1] then
    redis.call('ZREM', KEYS[1], member)
  else
    redis.call('ZADD', KEYS[1], 'XX', now, member)
  end
end
return {now}
