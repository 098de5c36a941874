-- A page of an owner's tasks, newest first. Expired ones are forgotten on the way.
-- KEYS  index by expiry, index by creation
-- ARGV  base of all keys, start below this creation time ('': the newest), or at it but below this member, page size
-- Answers {now, whether there are more (1), {member, creation time, head}, ...}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', KEYS[1], member)
  redis.call('ZREM', KEYS[2], member)
end
local size = tonumber(ARGV[4])
local top = ARGV[2] == '' and '+inf' or ARGV[2]
local answer = {now, 0}
local offset = 0
while #answer < size + 2 do
  local rows = redis.call('ZREVRANGEBYSCORE', KEYS[2], top, '-inf', 'WITHSCORES', 'LIMIT', offset, size + 1)
  if #rows == 0 then return answer end
  for i = 1, #rows, 2 do
    local member, created = rows[i], rows[i + 1]
    if created ~= ARGV[2] or member < ARGV[3] then
      local head = redis.call('HGET', ARGV[1] .. 't:' .. member, 'head')
      if head then
        if #answer == size + 2 then
          answer[2] = 1
          return answer
        end
        answer[#answer + 1] = {member, created, head}
      else
        redis.call('ZREM', KEYS[1], member)
        redis.call('ZREM', KEYS[2], member)
        offset = offset - 1
      end
    end
  end
  offset = offset + #rows / 2
end
local rest = redis.call('ZREVRANGEBYSCORE', KEYS[2], top, '-inf', 'LIMIT', offset, 1)
answer[2] = #rest
return answer
