-- Takes the first waiting job that fits what a worker offers. May be called again with the same lease id when the
-- answer was lost: it then gives the same answer.
--
-- KEYS  1 waiting list  2 intermediate list  3 answer of this lease
-- ARGV  1 the offer as JSON  2.. prefixes: job, liveness, first seen  5 jobs to look at  6 ms an answer is kept
-- Returns {job id, ms now, data, vram_bytes, submission, number, queued_at_ms}. When nothing fits: the smallest request
-- in bytes that lacks nothing but memory here, or false when there is none.
local offer = cjson.decode(ARGV[1])
local job_prefix, live_prefix, first_seen_prefix = ARGV[2], ARGV[3], ARGV[4]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function answer(id)
  local key = job_prefix .. id
  local found = redis.call('HMGET', key, 'data', 'vram_bytes', 'submission', 'number', 'queued_at_ms')
  return { id, string.format('%.0f', now_ms), found[1], found[2], found[3], found[4], found[5] }
end

local earlier = redis.call('GET', KEYS[3])
if earlier then
  -- A minute may have passed: the same answer only while the job still is this lease's.
  if redis.call('HGET', job_prefix .. earlier, 'lease') ~= offer.lease_id then return false end
  redis.call('SET', live_prefix .. earlier, offer.worker, 'PX', offer.ttl_ms)
  return answer(earlier)
end

local function set_of(list)
  local set = {}
  for _, item in ipairs(list) do set[item] = true end
  return set
end

local function each(text, check) -- true when check is true for every word of a text with commas
  for word in string.gmatch(text or '', '[^,]+') do
    if not check(word) then return false end
  end
  return true
end

local capabilities, refused = set_of(offer.capabilities), set_of(offer.refuse_submissions)
local short = false

local function fits(job)
  local vram_bytes, submission, requires, avoid, avoid_ms, queued_at_ms, refused_by = unpack(job, 1, 7)
  vram_bytes = tonumber(vram_bytes)
  if vram_bytes == nil then return false end -- no job of ours
  if vram_bytes < 0 and not offer.idle then return false end
  if submission and refused[submission] then return false end
  if not each(requires, function(word) return capabilities[word] end) then return false end
  if not each(refused_by, function(word) return word ~= offer.worker end) then return false end
  -- Avoiding ends after a while, or a pool with one device would wait for ever.
  if now_ms < (tonumber(queued_at_ms) or 0) + (tonumber(avoid_ms) or 0)
    and not each(avoid, function(word) return word ~= offer.device_id end) then return false end
  if vram_bytes <= offer.free_bytes then return true end
  if not short or vram_bytes < short then short = vram_bytes end
  return false
end

for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[5]) - 1)) do
  local key = job_prefix .. id
  if redis.call('HEXISTS', key, 'data') == 0 then
    redis.call('LREM', KEYS[1], 0, id) -- its hash was deleted; the coordinator enqueues the trial again
  elseif redis.call('EXISTS', live_prefix .. id) == 1 then
    redis.call('LREM', KEYS[1], 0, id) -- a live worker holds it: handed out twice, by RQ's clean-up for example
  elseif fits(redis.call('HMGET', key,
      'vram_bytes', 'submission', 'requires', 'avoid', 'avoid_ms', 'queued_at_ms', 'refused_by')) then
    redis.call('LREM', KEYS[1], 1, id)
    redis.call('LREM', KEYS[2], 0, id)
    redis.call('RPUSH', KEYS[2], id)
    -- RQ remembers for a day when it first saw the id in that list, and would call a second passage stuck at once.
    redis.call('DEL', first_seen_prefix .. id)
    redis.call('HSET', key, 'lease', offer.lease_id)
    redis.call('SET', live_prefix .. id, offer.worker, 'PX', offer.ttl_ms)
    redis.call('SET', KEYS[3], id, 'PX', ARGV[6])
    return answer(id)
  end
end
return short
