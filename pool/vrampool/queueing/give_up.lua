-- Undoes a take: the job goes back into the list, or away when its trial needs no run any more. Once only: a second
-- call, or one after another worker took the job, changes nothing.
--
-- KEYS  1 waiting list  2 intermediate list  3 job  4 liveness  5 answer of this lease
-- ARGV  1 job id  2 lease id  3 'front', 'back' or 'discard'  4 name of the worker that refuses it for good, or ''
--       5 channel  6 message
-- Returns 1 when the job was this lease's, else 0.
if redis.call('HGET', KEYS[3], 'lease') ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[4], KEYS[5])
redis.call('LREM', KEYS[2], 0, ARGV[1])
redis.call('LREM', KEYS[1], 0, ARGV[1])
if ARGV[3] == 'discard' then
  redis.call('DEL', KEYS[3])
  return 1
end
redis.call('HDEL', KEYS[3], 'lease')
if ARGV[4] ~= '' then
  local refused_by = redis.call('HGET', KEYS[3], 'refused_by')
  redis.call('HSET', KEYS[3], 'refused_by', refused_by and refused_by .. ',' .. ARGV[4] or ARGV[4])
end
redis.call(ARGV[3] == 'front' and 'LPUSH' or 'RPUSH', KEYS[1], ARGV[1])
redis.pcall('PUBLISH', ARGV[5], ARGV[6])
return 1
