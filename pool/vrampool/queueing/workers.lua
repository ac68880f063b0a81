-- The records of all workers, by name. KEYS: the set of names. ARGV: prefix of their records.
local names = redis.call('ZRANGE', KEYS[1], 0, -1)
if #names == 0 then return {} end
table.sort(names)
local keys = {}
for position, name in ipairs(names) do keys[position] = ARGV[1] .. name end
return redis.call('MGET', unpack(keys))
