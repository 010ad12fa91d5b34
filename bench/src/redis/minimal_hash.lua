-- A token bucket and nothing else, its state a hash: the form that most projects use.
-- KEYS[1] the state; ARGV capacity, tokens per microsecond, cost. Returns allowed, remaining.
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
