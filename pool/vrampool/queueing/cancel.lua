-- Removes jobs that nobody holds: from the waiting list, or what a worker that is gone left of them elsewhere.
--
-- KEYS  1 waiting list  2 intermediate list  3 started registry
-- ARGV  1.. prefixes: job, liveness, executions of a job, execution, results  6 the pool; then the job ids
-- Returns the ids that were removed from the waiting list.
local removed = {}
for index = 7, #ARGV do
  local id = ARGV[index]
  local key = ARGV[1] .. id
  if redis.call('LREM', KEYS[1], 0, id) > 0 then removed[#removed + 1] = id end
  local found = redis.pcall('HMGET', key, 'status', 'origin')
  local status, origin = found[1], found[2] -- nil where something else lies under the job's name
  -- An ended job stays for people to look at, until its time; another pool's is none of our business.
  local open = not status or ((status == 'queued' or status == 'started') and origin == ARGV[6])
  if open and redis.call('EXISTS', ARGV[2] .. id) == 0 then
    redis.call('LREM', KEYS[2], 0, id)
    local executions = ARGV[3] .. id
    for _, execution in ipairs(redis.call('ZRANGE', executions, 0, -1)) do
      local composite = id .. ':' .. execution
      redis.call('ZREM', KEYS[3], composite)
      redis.call('DEL', ARGV[4] .. composite)
    end
    redis.call('DEL', key, executions, ARGV[5] .. id)
  end
end
return removed
