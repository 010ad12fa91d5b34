-- A minimal token bucket with its state in a packed string.
-- KEYS[1] is the state; ARGV are capacity, tokens per microsecond and cost. Returns whether the
-- check is allowed, the remaining tokens, and the milliseconds until the bucket is full.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tokens = capacity
local state = redis.call('GET', KEYS[1])
if state then
  local level, at = struct.unpack('<dd', state)
  tokens = math.min(capacity, level + math.max(0, now - at) * rate)
end
local allowed = 0
if tokens >= cost then
  allowed = 1
  tokens = tokens - cost
end
local full = math.ceil((capacity - tokens) / rate / 1000) + 1
redis.call('SET', KEYS[1], struct.pack('<dd', tokens, now), 'PX', full)
return {allowed, math.floor(tokens), full}
