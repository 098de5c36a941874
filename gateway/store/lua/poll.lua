-- One look at a task, in one round trip.
-- KEYS  task, result, tombstone, session, operation
-- ARGV  session idle time in ms (0: no session is needed), whether the body is wanted (1)
-- Answers {now, session or '', found (1), expired (-1) or unknown (0), head, body or '',
-- what is known of the effect or ''}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local session = ''
if ARGV[1] ~= '0' then
  session = redis.call('GET', KEYS[4])
  if not session then return {now, '', 0, '', '', ''} end
  redis.call('PEXPIRE', KEYS[4], ARGV[1])
end

local record = redis.call('HMGET', KEYS[1], 'head', 'st', 'hid')
if not record[1] or record[3] == '1' then
  local expired = not record[1] and redis.call('EXISTS', KEYS[3]) == 1
  return {now, session, expired and -1 or 0, '', '', ''}
end

local body = ''
if ARGV[2] == '1' and record[2] == 'done' then body = redis.call('GET', KEYS[2]) or '' end
return {now, session, 1, record[1], body, redis.call('HGET', KEYS[5], 'oc') or ''}
