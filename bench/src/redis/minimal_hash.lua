-- A minimal token bucket with its state in a hash, as in most projects.
-- KEYS[1] is the state; ARGV are capacity, tokens per microsecond and cost. Returns whether the
-- check is allowed, and the remaining tokens.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(state[1]) or capacity, tonumber(state[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - at) * rate)
local allowed = 0
if tokens >= cost then
  allowed = 1
  tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) / rate / 1000) + 1)
return {allowed, math.floor(tokens)}
