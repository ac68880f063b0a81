-- Becomes the leader when nobody leads, or goes on being it after a lost reply.
--
-- KEYS  1 leader  2 last epoch
-- ARGV  1 name  2 ms the leadership lasts without renewal
-- Returns the epoch, or false when somebody else leads.
local leader = redis.call('GET', KEYS[1])
if leader then
  local epoch, name = string.match(leader, '^(%d+) (.*)$')
  if name ~= ARGV[1] then return false end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return epoch
end
-- Rises with the clock, so that it also does after Redis came back empty.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1e6 + tonumber(time[2])
local epoch = math.max((tonumber(redis.call('GET', KEYS[2])) or 0) + 1, now_us)
local text = string.format('%.0f', epoch)
redis.call('SET', KEYS[2], text, 'EX', 604800)
redis.call('SET', KEYS[1], text .. ' ' .. ARGV[1], 'PX', ARGV[2])
return text
