-- Removes jobs that nobody holds: from the waiting list, or left in the intermediate list by a worker that is gone.
--
-- KEYS  1 waiting list  2 intermediate list
-- ARGV  1.. prefixes: job, liveness, results; then the job ids
-- Returns the ids that were removed from the waiting list.
local removed = {}
for index = 4, #ARGV do
  local id = ARGV[index]
  local listed = redis.call('LREM', KEYS[1], 0, id) > 0
  if listed then removed[#removed + 1] = id end
  if redis.call('EXISTS', ARGV[2] .. id) == 0 then
    local left = redis.call('LREM', KEYS[2], 0, id) > 0
    if listed or left then redis.call('DEL', ARGV[1] .. id, ARGV[3] .. id) end
  end
end
return removed
