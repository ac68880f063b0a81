-- Takes the first waiting job that fits what a worker offers. May be called again with the same lease id when the
-- answer was lost: it then gives the same answer. A job that was passed over for too long goes before all others, and
-- where it does not fit a device is kept free for it (earmarks.lua); any other where it fits may still take it.
--
-- KEYS  1 waiting list  2 intermediate list  3 answer of this lease  4 earmarks  5 sorted set of workers
-- ARGV  1 the offer as JSON  2.. prefixes: job, liveness, first seen, worker record  6 jobs to look at
--       7 ms an answer is kept  8 channel  9 message for when a device is kept free no longer
-- Returns three values, each of them false when there is none: what was taken as {job id, ms now, data, vram_bytes,
-- submission, number, queued_at_ms}; for what the worker's device is kept free as {job id, vram_bytes, description, ms
-- since}; the smallest number of bytes for which there was no room.
local offer = cjson.decode(ARGV[1])
local job_prefix, live_prefix, first_seen_prefix, record_prefix = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- include earmarks.lua

local smallest_bytes = nil

local function answer(id)
  local taken, kept = false, marks[offer.worker] or false
  if id then
    local found = redis.call(
      'HMGET', job_prefix .. id, 'data', 'vram_bytes', 'submission', 'number', 'queued_at_ms')
    taken = { id, string.format('%.0f', now_ms), found[1], found[2], found[3], found[4], found[5] }
  end
  if kept then
    local found = redis.call('HMGET', job_prefix .. kept.id, 'vram_bytes', 'description')
    kept = { kept.id, found[1], found[2], kept.since_ms }
  end
  return { taken, kept, smallest_bytes and string.format('%.0f', smallest_bytes) or false }
end

local function take(id)
  local key = job_prefix .. id
  redis.call('LREM', KEYS[1], 1, id)
  redis.call('LREM', KEYS[2], 0, id)
  redis.call('RPUSH', KEYS[2], id)
  -- RQ remembers for a day when it first saw the id in that list, and would call a second passage stuck at once.
  redis.call('DEL', first_seen_prefix .. id)
  redis.call('HSET', key, 'lease', offer.lease_id)
  redis.call('SET', live_prefix .. id, offer.worker, 'PX', offer.ttl_ms)
  redis.call('SET', KEYS[3], id, 'PX', ARGV[7])
  if unmark(id) then redis.pcall('PUBLISH', ARGV[8], ARGV[9]) end
  return answer(id)
end

local function fits(job, room_bytes, idle)
  if job.exclusive then return idle end
  return job.bytes <= room_bytes
end

read_marks()

local earlier = redis.call('GET', KEYS[3])
if earlier then
  -- A minute may have passed: the same answer only while the job still is this lease's.
  if redis.call('HGET', job_prefix .. earlier, 'lease') ~= offer.lease_id then return answer(nil) end
  redis.call('SET', live_prefix .. earlier, offer.worker, 'PX', offer.ttl_ms)
  return answer(earlier)
end

local kept, room_bytes, idle = marks[offer.worker], offer.free_bytes, offer.idle
if kept then
  if fits(kept, room_bytes, idle) then return take(kept.id) end
  -- Others may have what does not delay it. Only a worker that knows of its earmark can say how much that is.
  room_bytes, idle = offer.earmark == kept.id and offer.room_bytes or 0, false
end

local found, late = nil, {}
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[6]) - 1)) do
  if not is_whole(id) then
    redis.call('LREM', KEYS[1], 0, id) -- its hash was deleted; the coordinator enqueues the trial again
  elseif is_held(id) then
    redis.call('LREM', KEYS[1], 0, id) -- a live worker holds it: handed out twice, by RQ's clean-up for example
  else
    local job = read_job(id)
    local is_news = job and not job.passed_ms
    if job and suits(job, me) then
      job.fits = fits(job, room_bytes, idle)
      if not job.fits and not job.exclusive then
        smallest_bytes = math.min(smallest_bytes or job.bytes, job.bytes)
      end
      -- What stands behind is passed over as well: those before it may be retries, or have a higher priority.
      if is_news and (found or not job.fits) then
        job.passed_ms = now_ms
        redis.call('HSET', job_prefix .. id, 'passed_ms', string.format('%.0f', now_ms))
      end
      if job.fits and not found then found = job end
    end
    -- Also what only others can hold: a younger one must not be given the device that an older one waits for.
    if job and job.passed_ms and now_ms - job.passed_ms >= offer.age_limit_ms and not (is_news and job.fits) then
      late[#late + 1] = job
    end
  end
end

for _, job in ipairs(by_age(late)) do
  if job.fits then -- one that waited too long goes before all others
    found = job
    break
  end
end
for _, job in ipairs(late) do
  if not job.fits and not marked[job.id] then place(job) end
end
-- Its own device is kept free from this moment on: it asks again, and says what it can give to others beside that.
if marks[offer.worker] ~= kept then found = nil end
if found then return take(found.id) end
return answer(nil)
