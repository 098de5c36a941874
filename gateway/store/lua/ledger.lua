-- A page of the ledger: unknown outcomes first, then what is kept for longest.
-- KEYS  ledger
-- ARGV  base of all keys, score and member after which the page begins ('': at the beginning), how many entries to look
--       at, how many to answer, state of the operation ('': any), of the task ('': any, or none; *: any, but not hidden)
-- Answers {now, score and member of the last entry that was looked at ('': nothing comes after it),
--          {member, task head or '', operation head}, ...}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local base, look, size = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])

-- The entry at which the last page ended may be gone by now, or elsewhere: it is put where it was, to count from there.
local start = 0
if ARGV[3] ~= '' then
  local score = redis.call('ZSCORE', KEYS[1], ARGV[3])
  redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
  start = redis.call('ZREVRANK', KEYS[1], ARGV[3])
  if score then
    redis.call('ZADD', KEYS[1], score, ARGV[3])
    if redis.call('ZREVRANK', KEYS[1], ARGV[3]) <= start then start = start + 1 end
  else
    redis.call('ZREM', KEYS[1], ARGV[3])
  end
end

local function task_of(member)
  local task = redis.call('HMGET', base .. 't:' .. member, 'st', 'hid', 'head')
  if ARGV[7] == '' then return task[3] or '' end
  local wanted = task[3] and task[2] == '0' and (ARGV[7] == '*' or ARGV[7] == task[1])
  return wanted and task[3] or nil
end

local answer = {now, '', ''}
local rows = redis.call('ZREVRANGE', KEYS[1], start, start + look - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
  local member = rows[i]
  local operation = redis.call('HMGET', base .. 'o:' .. member, 'st', 'head')
  if operation[1] and (ARGV[6] == '' or ARGV[6] == operation[1]) then
    local task = task_of(member)
    if task then answer[#answer + 1] = {member, task, operation[2]} end
  end
  local full = #answer == size + 3
  if full or i + 1 == #rows then
    local last = i + 1 == #rows and #rows < 2 * look
    if not last then answer[2], answer[3] = rows[i + 1], member end
    break
  end
end
return answer
