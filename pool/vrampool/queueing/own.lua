-- Renews or deletes a key that must hold a certain value.
--
-- KEYS  1 key
-- ARGV  1 the value  2 ms it lives on; '' deletes it
-- Returns 1, or 0 when the key is gone or holds something else.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
