-- Writes a worker's record and notes its device's budget.
--
-- KEYS  1 record  2 sorted set of workers  3 budgets  4 when each device was seen
-- ARGV  1 name  2 the record  3 ms it lives  4 device id  5 what a trial can get of it, in bytes; 0: not known yet  6 ms a budget is kept
--       7 channel of news  8 what is told there, that there is room now; empty: nothing
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], now_ms + tonumber(ARGV[3]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. string.format('%.0f', now_ms))
if tonumber(ARGV[5]) > 0 then
  redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
  redis.call('ZADD', KEYS[4], now_ms, ARGV[4])
end
local old = '(' .. string.format('%.0f', now_ms - tonumber(ARGV[6]))
for _, device in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', old)) do
  redis.call('ZREM', KEYS[4], device)
  redis.call('HDEL', KEYS[3], device)
end
if ARGV[8] ~= '' then redis.pcall('PUBLISH', ARGV[7], ARGV[8]) end -- a hint, so it never fails
for index = 2, 4 do redis.call('PEXPIRE', KEYS[index], ARGV[6]) end
