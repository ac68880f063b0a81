-- The records of workers that wrote theirs since some moment, or of all that live.
--
-- KEYS  1 sorted set of workers, by when their records end
-- ARGV  1 prefix of the records  2 their ends from here on, in ms; 'all' for those of all that live
-- Returns ms now, how many live, and then a name and a record for each; false for a record that is gone.
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local live = redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')
local names = ARGV[2] == 'all' and live or redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[2], '+inf')
local answer = { now, #live }
for _, name in ipairs(names) do
  answer[#answer + 1] = name
  answer[#answer + 1] = redis.call('GET', ARGV[1] .. name)
end
return answer
