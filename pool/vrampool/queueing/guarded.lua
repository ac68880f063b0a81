-- Carries out commands for a job in one step, like MULTI, but only those whose condition holds.
--
-- KEYS  1 liveness  2 job  3 mark that this was done; left out when it may be repeated
-- ARGV  1 name of the worker  2 ms the mark is kept; then for each command: conditions, number of words, words ...
--       conditions are letters: 'o' the job is not another worker's, 'j' the job's hash is there (Redis may have come
--       back empty: half a hash would be worse than none), 'k' the command's own key is there
-- Returns 1, or 0 when another worker holds the job.
local holder = redis.call('GET', KEYS[1])
local ours = not holder or holder == ARGV[1]
if KEYS[3] and not redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2], 'NX') then
  return ours and 1 or 0
end
local whole = redis.call('HEXISTS', KEYS[2], 'data') == 1
local at = 3
while at <= #ARGV do
  local conditions, words = ARGV[at], tonumber(ARGV[at + 1])
  local first = at + 2
  if (ours or not string.find(conditions, 'o', 1, true))
      and (whole or not string.find(conditions, 'j', 1, true))
      and (not string.find(conditions, 'k', 1, true) or redis.call('EXISTS', ARGV[first + 1]) == 1) then
    local call = ARGV[first] == 'PUBLISH' and redis.pcall or redis.call -- a hint never fails
    call(unpack(ARGV, first, first + words - 1))
  end
  at = first + words
end
return ours and 1 or 0
