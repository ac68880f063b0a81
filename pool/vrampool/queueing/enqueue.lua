-- Puts jobs into the waiting list, each at most once, if the caller leads the pool.
--
-- KEYS  1 waiting list  2 intermediate list  3 leader  4 RQ's set of queues  5 started  6 finished  7 failed registry
-- ARGV  1 epoch of the caller, '' for a pool without a leader  2 'front' or 'back'
--       3 channels on which workers are called, one a line  4 message
--       5.. prefixes: job, liveness, executions of a job, execution, results
--       10 number of jobs; then for each: id, number of words, field, value, field, value ...
-- Returns -1 when somebody else leads, else the ids that were put into the list.
local waiting, intermediate = KEYS[1], KEYS[2]
local job_prefix, live_prefix, executions_prefix, execution_prefix, results_prefix =
  ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

-- "<epoch> <name>"; a leader whose lease ran out has no say until it leads again.
local leader = redis.call('GET', KEYS[3])
if ARGV[1] ~= (leader and string.match(leader, '^%d+') or '') then return -1 end

local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
redis.call('SADD', KEYS[4], waiting)

local jobs, at = {}, 11
for index = 1, tonumber(ARGV[10]) do
  local words = tonumber(ARGV[at + 1])
  jobs[index] = { id = ARGV[at], first = at + 2, last = at + 1 + words }
  at = at + 2 + words
end

local function priority_of(id)
  local found = redis.pcall('HGET', job_prefix .. id, 'priority') -- an error where what lies there is no job
  return type(found) == 'string' and tonumber(found) or 0
end

-- The list falls by priority: a job goes behind its equals, or before them when it is put to the front.
local function insert(id, priority, front)
  local edge = redis.call('LINDEX', waiting, front and 0 or -1)
  if edge == false or (front and priority_of(edge) <= priority) or (not front and priority_of(edge) >= priority) then
    redis.call(front and 'LPUSH' or 'RPUSH', waiting, id)
    return
  end
  for _, other in ipairs(redis.call('LRANGE', waiting, 0, -1)) do
    local its = priority_of(other)
    if its < priority or (front and its == priority) then
      redis.call('LINSERT', waiting, 'BEFORE', other, id)
      return
    end
  end
  redis.call('RPUSH', waiting, id)
end

local put = {}
local from, to, step = 1, #jobs, 1
if ARGV[2] == 'front' then from, to, step = #jobs, 1, -1 end -- pushed in reverse they stand in their order
for index = from, to, step do
  local job = jobs[index]
  local key = job_prefix .. job.id
  local listed = redis.call('LPOS', waiting, job.id)
  local whole = redis.pcall('HEXISTS', key, 'data')
  if type(whole) == 'table' then redis.call('DEL', key) end -- something else lies under the job's name
  whole = whole == 1
  local held = redis.call('EXISTS', live_prefix .. job.id) == 1
  if not held and not (listed and whole) then
    -- Whatever an earlier delivery left behind: its worker is gone, and RQ would later call the new one abandoned.
    redis.call('LREM', intermediate, 0, job.id)
    local executions = executions_prefix .. job.id
    for _, execution in ipairs(redis.call('ZRANGE', executions, 0, -1)) do
      local composite = job.id .. ':' .. execution
      redis.call('ZREM', KEYS[5], composite)
      redis.call('DEL', execution_prefix .. composite)
    end
    redis.call('ZREM', KEYS[6], job.id)
    redis.call('ZREM', KEYS[7], job.id)
    local since, passed = unpack(redis.call('HMGET', key, 'queued_at_ms', 'passed_ms'), 1, 2)
    redis.call('DEL', key, executions, results_prefix .. job.id)
    redis.call('HSET', key, 'queued_at_ms', since or now_ms, unpack(ARGV, job.first, job.last))
    -- It has waited since then all the same; or before it was made.
    local waited_ms = tonumber(redis.call('HGET', key, 'waited_ms')) or 0
    if not passed and waited_ms > 0 then passed = string.format('%.0f', tonumber(now_ms) - waited_ms) end
    if passed then redis.call('HSET', key, 'passed_ms', passed) end
    if not listed then
      insert(job.id, tonumber(redis.call('HGET', key, 'priority')) or 0, ARGV[2] == 'front')
    end
    put[#put + 1] = job.id
  end
end
if #put > 0 then
  -- A call is a hint, so it never fails: a user of an older ACL file may not have the channel.
  for channel in string.gmatch(ARGV[3], '[^\n]+') do redis.pcall('PUBLISH', channel, ARGV[4]) end
end
return put
