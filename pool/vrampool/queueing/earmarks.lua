-- Which device is kept free for which job, and what a device could hold. Included by take.lua, which sets `offer`,
-- `job_prefix`, `live_prefix`, `record_prefix` and `now_ms` before.
--
-- Earmarks: a hash, worker -> "<ms since> <job id>". One for a job and one for a worker. Every take looks at all of
-- them first, so that one ends with its worker, with its job, or when its device cannot hold the job any more.
local waiting, earmarks, workers = KEYS[1], KEYS[4], KEYS[5]
local EARMARKS_KEPT_MS = 86400000 -- as long as nobody takes anything

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

-- False for whatever is no job: who may write here may put anything into the list, and under any key.
local function is_whole(id)
  return string.match(id, '^[%w_-]+$') and redis.pcall('HEXISTS', job_prefix .. id, 'data') == 1
end
local function is_held(id) return redis.call('EXISTS', live_prefix .. id) == 1 end

local function read_job(id) -- nil when it is no job of ours
  local found = redis.call(
    'HMGET', job_prefix .. id, 'vram_bytes', 'submission', 'requires', 'avoid', 'avoid_ms', 'queued_at_ms',
    'refused_by', 'passed_ms', 'beyond_bytes')
  local vram_bytes, submission, requires, avoid, avoid_ms, queued_at_ms, refused_by, passed_ms, beyond_bytes =
    unpack(found, 1, 9)
  -- A number in Lua may also be hexadecimal, infinite, or none at all.
  if not string.match(vram_bytes or '', '^%-?%d+$') or #vram_bytes > 18 then return nil end
  vram_bytes = tonumber(vram_bytes)
  return {
    id = id, bytes = vram_bytes, exclusive = vram_bytes < 0, submission = submission, requires = requires,
    -- Avoiding ends after a while, or a pool with one device would wait for ever.
    avoid = now_ms < (tonumber(queued_at_ms) or 0) + (tonumber(avoid_ms) or 0) and avoid or '',
    refused_by = refused_by, passed_ms = tonumber(passed_ms), beyond_bytes = tonumber(beyond_bytes) or 0,
  }
end

-- ---- devices --------------------------------------------------------------------------------------------------

local function asking() -- the device of the worker that asks: what it offers is newer than its record
  local capabilities = set_of(offer.capabilities)
  return {
    name = offer.worker, id = offer.device_id, ready = true, can = capabilities,
    refuses = set_of(offer.refuse_submissions), most_bytes = offer.most_bytes, trials = offer.trials,
    held_bytes = math.max(0, (offer.most_bytes or 0) - offer.free_bytes),
  }
end

local function recorded(name) -- any other, as it last told; nil when it is gone, or too old to tell what it can hold
  local body = redis.call('GET', record_prefix .. name)
  if not body then return nil end
  local read, record = pcall(cjson.decode, body)
  if not read or type(record) ~= 'table' or type(record.most_bytes) ~= 'number' then return nil end
  local can, refuses, held_bytes = set_of(record.capabilities or {}), {}, 0
  can[record.device_kind or ''] = true
  for submission in pairs(record.refused or {}) do refuses[submission] = true end
  for _, submission in ipairs(record.full_submissions or {}) do refuses[submission] = true end
  for _, trial in ipairs(record.running or {}) do
    local measured_bytes = type(trial.measured_bytes) == 'number' and trial.measured_bytes or 0
    held_bytes = held_bytes + math.max(trial.lease_bytes or 0, measured_bytes)
  end
  return {
    name = name, id = record.device_id, ready = record.state == 'ready', can = can, refuses = refuses,
    most_bytes = record.most_bytes, held_bytes = held_bytes, trials = #(record.running or {}),
  }
end

local me, seen = asking(), {}

local function device_of(name)
  if name == me.name then return me end
  if seen[name] == nil then seen[name] = recorded(name) or false end
  return seen[name]
end

-- True when the device could run the job if nothing else were on it.
local function suits(job, device)
  if not device.ready then return false end
  if device.most_bytes and job.bytes > device.most_bytes then return false end
  -- It has failed with so much already.
  if device.most_bytes and job.exclusive and job.beyond_bytes >= device.most_bytes then return false end
  if job.submission and device.refuses[job.submission] then return false end
  return each(job.requires, function(word) return device.can[word] end)
    and each(job.refused_by, function(word) return word ~= device.name end)
    and each(job.avoid, function(word) return word ~= device.id end)
end

-- ---- earmarks -------------------------------------------------------------------------------------------------

local marks, marked = {}, {} -- worker -> job; job id -> worker

local function mark(name, job)
  marks[name], marked[job.id] = job, name
end

local function read_marks()
  local found = redis.call('HGETALL', earmarks)
  for index = 1, #found, 2 do
    local name = found[index]
    local since_ms, id = string.match(found[index + 1], '^(%d+) (.+)$')
    local job = id and not marked[id] and redis.call('LPOS', waiting, id) and is_whole(id) and not is_held(id)
      and read_job(id)
    local device = job and device_of(name)
    if device and suits(job, device) then
      job.since_ms = since_ms
      mark(name, job)
    else
      redis.call('HDEL', earmarks, name)
    end
  end
end

-- How many bytes must be given back on a device before it can start the job. How long that takes nobody knows.
local function missing(job, device)
  if job.exclusive then return device.held_bytes end
  return math.max(0, job.bytes - (device.most_bytes - device.held_bytes))
end

local function is_nearer(job, device, other)
  if not other then return true end
  local one, two = missing(job, device), missing(job, other)
  if one ~= two then return one < two end
  if device.trials ~= other.trials then return device.trials < other.trials end
  return device.name < other.name
end

-- Keeps one device free for a job: of those that could hold it, the one that has least to give back before.
local function place(job)
  local best
  local names = redis.call('ZRANGE', workers, 0, -1)
  names[#names + 1] = me.name -- its first record may not be there yet
  for _, name in ipairs(names) do
    local device = not marks[name] and device_of(name)
    if device and device.most_bytes and suits(job, device) and is_nearer(job, device, best) then best = device end
  end
  if not best then return end
  job.since_ms = string.format('%.0f', now_ms)
  redis.call('HSET', earmarks, best.name, job.since_ms .. ' ' .. job.id)
  redis.call('PEXPIRE', earmarks, EARMARKS_KEPT_MS)
  mark(best.name, job)
end

-- Sorts jobs: the one that was passed over first comes first.
local function by_age(jobs)
  for index, job in ipairs(jobs) do job.position = index end
  table.sort(jobs, function(one, two)
    if one.passed_ms ~= two.passed_ms then return one.passed_ms < two.passed_ms end
    return one.position < two.position
  end)
  return jobs
end

-- Ends a job's earmark; true when another device was kept for it, which may now take what it likes.
local function unmark(id)
  local name = marked[id]
  if not name then return false end
  redis.call('HDEL', earmarks, name)
  marks[name], marked[id] = nil, nil
  return name ~= me.name
end
