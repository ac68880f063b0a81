-- Renews the liveness keys of trials that run, and writes them anew where Redis lost them. Never takes one from
-- another worker.
--
-- KEYS  for each job: its liveness key, RQ's first-seen key
-- ARGV  1 ms they live; then for each job the name of its worker
-- Returns the positions (from 1) of jobs that another worker holds.
local lost = {}
for index = 1, #KEYS / 2 do
  local key, worker = KEYS[2 * index - 1], ARGV[1 + index]
  local holder = redis.call('GET', key)
  if holder and holder ~= worker then
    lost[#lost + 1] = index
  else
    redis.call('SET', key, worker, 'PX', ARGV[1])
    -- A trial whose claim takes long stays in RQ's intermediate list; RQ must not see it there for a whole minute.
    redis.call('DEL', KEYS[2 * index])
  end
end
return lost
