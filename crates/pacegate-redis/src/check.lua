-- Decides one command and, if it is admitted, charges it: all six algorithms, chains, peeks,
-- refunds, resets and idempotency.
--
-- This is one script because Redis runs a script without interruption: no other client touches the
-- keys between its first read and its last write. Everything is read and decided before anything is
-- written, because Lua does not roll back. A denial, a peek and a replay write nothing, with one
-- exception: a take corrects a counter whose time is more than one window ahead because the clock
-- was set back. Every number is an integer below 2^53, which a double holds exactly; the arithmetic
-- is that of the Rust core.
--
-- KEYS[1..n]   the state of each limit, in the order of the charges; all keys differ
-- KEYS[n+1]    the record of the idempotency key, if any
--
-- ARGV[1]      't' take, 'k' take that creates no new key, 'p' peek, 'f' refund, 'x' reset
-- ARGV[2..n+1] each charge, packed as CHARGE: its limit and its cost
-- ARGV[n+2]    optional: for a take or a peek under an idempotency key, the fingerprints of the
--              request (16 bytes) and of its limits (8 bytes); for a refund, when each cost was
--              taken, as a double, or -1 for the newest charges; or empty
-- ARGV[n+3]    in tests only: the time in microseconds, instead of the server's
--
-- Returns      a string: status (0 decided, 1 replayed, 2 idempotency mismatch, 3 reset, 4 replayed
--              under other limits, 16 + n decided with n new long-lived keys) and time as HEAD;
--              if it was decided, whether it is admitted (one byte) and an ANSWER for each charge;
--              and, if a debt bound kept something from being charged, the uncharged amount of
--              each charge (4 bytes).
--              Or an error, and nothing was written: OOM if Redis is full, NEWKEY for 'k',
--              each with the numbers of the charges that need a new key.
--
-- State        a string packed as STATE. A sliding log is a sorted set: the score is the time, the
--              member is 'total:cost:window:standing', where total is the running sum of all costs.
--              The total makes members unique, and a check does not have to walk the log.
--
-- A full Redis (maxmemory) rejects the first write of a script if it may need memory, but lets a
-- script continue that has already written. An existing key is therefore removed before it is
-- rewritten, and whether a new key can be created is tested before anything is written.
--
-- Redis executes the whole file for every call, and creating a function costs almost as much as
-- deciding a bucket. The common path therefore uses none, and the functions for rare cases are
-- created when they are needed: `rarely` and `logging`.

local HEAD = '<Bd'
-- algorithm, flags, tick exponent, quota, capacity, cost, window, tick, window in ticks, units per
-- token, units per tick, capacity in units. Flags: 1 for a shadow limit; 2 if only a cost of 1 has
-- to fit, 4 if nothing has to fit: what exceeds the remaining capacity is debt.
local CHARGE, CHARGE_LENGTH = '<BBBI4I4ddddddd', 67
-- version, algorithm, standing, tick exponent, quota, window, and three numbers: level and tick
-- (token bucket, leaky bucket, gcra); window number and count (fixed window); window number,
-- current and previous count (sliding counter)
local STATE, STATE_LENGTH, VERSION = '<BBBBI4dddd', 40, 1
-- allowed, reason (0 none, 1 limit exceeded, 2 cost exceeds the capacity), standing, previous
-- standing, remaining, queue position, reset_at, retry_at (-1 none), delay
local ANSWER, HEAD_AND_ANSWER = '<BBBBI4I4ddd', '<BdBBBBBI4I4ddd'
local LEAKY, FIXED, LOG, COUNTER = 2, 3, 4, 5
local MAX, LARGEST_QUOTA = 9007199254740991, 1000000000
local RECORD_TTL = 300000000
-- A new key that expires sooner than this costs no significant memory, however many there are.
local LONG_LIVED = 10000000
-- Tests that specify the time run for less than this many milliseconds of the server's time.
local TEST_TTL = 86400000
-- The prefix of the error for a key, by its number, whose value no version of this script wrote.
local FOREIGN = 'FOREIGN '
-- The prefixes of the errors for new keys, by their numbers.
local FULL, NEW_KEY = 'OOM no memory for the keys', 'NEWKEY not created'
local floor, pack, unpack_struct, call, try = math.floor, struct.pack, struct.unpack, redis.call, redis.pcall

local action = ARGV[1]
local known_only = action == 'k'
if known_only then action = 't' end
-- No fingerprint, list of doubles or time is as long as a charge, which distinguishes them.
local count = #ARGV - 1
local extra, now = '', nil
if count > 0 and #ARGV[count + 1] ~= CHARGE_LENGTH then
  if count > 1 and #ARGV[count] ~= CHARGE_LENGTH then
    count = count - 1
    now = tonumber(ARGV[count + 2])
  end
  count = count - 1
  extra = ARGV[count + 2]
end
local injected = now
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

if action == 'x' then
  if KEYS[1] then call('UNLINK', unpack(KEYS)) end
  return pack(HEAD, 3, now)
end

local record, status = KEYS[count + 1], 0
if record then
  -- The version, the fingerprints of the request and of its limits, and the reply to its admission.
  local earlier = call('GET', record)
  if earlier and (#earlier < 35 or string.byte(earlier) ~= VERSION) then return {err = FOREIGN .. 'record'} end
  if earlier and now < unpack_struct('<d', earlier, 27) + RECORD_TTL then
    if string.sub(earlier, 2, 17) ~= string.sub(extra, 1, 16) then return pack(HEAD, 2, now) end
    if string.sub(earlier, 18, 25) == string.sub(extra, 17) then return '\1' .. string.sub(earlier, 27) end
    -- It was admitted under other limits: peek at those in force now, and take nothing.
    status, action = 4, 'p'
  end
end

-- Everything is passed as an argument: upvalues cost time whenever a function is created.
local function rarely(now)
  local rare, floor = {}, math.floor

  local function ceil_div(a, b)
    local quotient = floor(a / b)
    if quotient * b < a then return quotient + 1 end
    return quotient
  end

  function rare.times(a, b)
    if a > floor(MAX / b) then return MAX end
    return a * b
  end

  -- The standing of a key: above 80 % used is a warning (1), below 70 % normal again (0), nothing
  -- left throttled (2).
  function rare.settle(standing, left, capacity)
    if left * 100 > capacity * 30 then return 0 end
    if left == 0 then return 2 end
    if left * 100 < capacity * 20 then return 1 end
    if standing > 1 then return 1 end
    return standing
  end

  -- floor(a * b / m) and the remainder, for products beyond 2^53; b is below 2^30.
  function rare.mul_div(a, b, m)
    local quotient, rest = 0, 0
    local whole, part = floor(a / m), a % m
    local bit = 536870912
    while bit >= 1 do
      quotient = quotient * 2
      if rest >= m - rest then quotient, rest = quotient + 1, rest - (m - rest) else rest = rest * 2 end
      if b >= bit then
        b = b - bit
        quotient = quotient + whole
        if rest >= m - part then quotient, rest = quotient + 1, rest - (m - part) else rest = rest + part end
      end
      bit = bit / 2
    end
    return quotient, rest
  end

  -- Level and tick of a state that was written under another quota or tick: whole tokens are kept,
  -- and a fraction counts as used.
  function rare.convert(window, new_tick, new_unit, quota, exponent, level, at)
    local tick = 10 ^ exponent
    local ticks = ceil_div(window, tick)
    local a, b = quota, ticks
    while b ~= 0 do a, b = b, a % b end
    local unit, rate = ticks / a, quota / a
    local elapsed = floor(now / tick) - at
    if elapsed >= ceil_div(level, rate) then level = 0 elseif elapsed > 0 then level = level - elapsed * rate end
    local here, last_seen = floor(now / new_tick), ceil_div(rare.times(at, tick), new_tick)
    -- Rounding up must not move it more than one window ahead.
    if last_seen > here and rare.times(last_seen, new_tick) <= now + window then here = last_seen end
    return rare.times(ceil_div(level, unit), new_unit), here
  end

  -- The level of a bucket at tick 'at' after a refund. What may have drained since it was taken is
  -- not refunded again. Computed in ticks and units, because a refund may exceed 2^53 units.
  function rare.refund_level(tick, unit, rate, level, at, cost, taken_at)
    local ticks, units = rare.mul_div(unit, cost, rate)
    if taken_at then ticks = ticks - math.max(at - floor(taken_at / tick), 0) end
    if ticks < 0 then return level end
    if ticks > floor(level / rate) then return 0 end
    return math.max(level - ticks * rate - units, 0)
  end

  -- The three numbers of a state whose time is more than one window ahead because the clock was set
  -- back: the same usage, taken now.
  function rare.taken_now(algorithm, window, exponent, a, b, c)
    if algorithm == FIXED then return floor(now / window), b, c end
    if algorithm == COUNTER then return floor(now / window), math.min(b + c, LARGEST_QUOTA), 0 end
    return a, floor(now / 10 ^ exponent), c
  end

  -- Current and previous count after a refund to the window in which the cost was taken.
  function rare.refund_windows(window, number, current, previous, cost, taken_at)
    local taken_in = number
    if taken_at then taken_in = floor(taken_at / window) end
    if taken_in == number then
      if not taken_at and cost > current then previous = math.max(previous - (cost - current), 0) end
      current = math.max(current - cost, 0)
    elseif taken_in + 1 == number then
      previous = math.max(previous - cost, 0)
    end
    return current, previous
  end

  -- The largest amount that a forced charge may take: until twice the capacity is in use.
  function rare.remaining_with_debt(algorithm, quota, left, current, previous, used, level, unit, units)
    if algorithm == FIXED then return math.max(2 * quota - current, 0) end
    if algorithm == COUNTER then return math.max(2 * quota - current - previous, left) end
    if algorithm == LOG then return math.max(2 * quota - used, 0) end
    return math.max(floor((math.min(2 * units, MAX) - level) / unit), 0)
  end

  return rare
end

local function logging(now, injected)
  local logs, floor, call = {}, math.floor, redis.call
  -- A refund rewrites the entries after the one it reduces; beyond this number it would block Redis
  -- for too long and is skipped.
  local REFUND_REACH = 10000

  local function score(time) return string.format('%.0f', time) end

  local function member(total, own, window, standing)
    return string.format('%.0f:%.0f:%.0f:%d', total, own, window, standing)
  end

  local function expire(key, fresh_at)
    if injected then
      call('PEXPIRE', key, TEST_TTL)
    else
      call('PEXPIREAT', key, floor(fresh_at / 1000) + 1)
    end
  end

  function logs.parse(text)
    local total, own, window, standing = string.match(text, '^(%d+):(%d+):(%d+):([012])$')
    return tonumber(total), tonumber(own), tonumber(window), tonumber(standing)
  end

  -- A sliding log at the present time; nil if the value is foreign.
  function logs.read_log(key, window)
    local log = {key = key, window = window, time = now, used = 0, base = 0, total = 0, standing = 0}
    local newest = redis.pcall('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if newest.err then
      local text = redis.pcall('GET', key)
      if type(text) ~= 'string' or #text ~= STATE_LENGTH or string.byte(text) ~= VERSION then return nil end
      log.stale = true
      return log
    end
    if not newest[1] then return log end
    local total, own, written_under, standing = logs.parse(newest[1])
    if not standing then return nil end
    if written_under ~= window then
      log.stale = true
      return log
    end
    local time = tonumber(newest[2])
    log.exists, log.standing = true, standing
    -- If the clock went back, nothing expires.
    if time > now then log.time = time end
    log.live_from = log.time - window
    if time <= log.live_from then return log end
    local first = call('ZRANGEBYSCORE', key, '(' .. score(log.live_from), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local first_total, first_own = logs.parse(first[1])
    log.newest, log.newest_time, log.newest_own, log.total = newest[1], time, own, total
    log.base, log.first_total, log.first_time = first_total - first_own, first_total, tonumber(first[2])
    log.used, log.fresh_at = total - log.base, time + window
    if time > now + window then
      -- The clock was set back by more than a window: what is in use counts as one entry, taken
      -- now.
      log.ahead, log.newest = true, member(log.used, log.used, window, standing)
      log.time, log.live_from, log.fresh_at, log.first_time, log.newest_time = now, now - window, now + window, now, now
      log.base, log.total, log.first_total, log.newest_own = 0, log.used, log.used, log.used
    end
    return log
  end

  -- Writes the single entry that replaces a log from more than a window ahead.
  function logs.correct(log)
    call('UNLINK', log.key)
    call('ZADD', log.key, score(now), log.newest)
    expire(log.key, now + log.window)
  end

  -- When enough has expired: with the first entry whose running total reaches it, found by its
  -- rank.
  function logs.log_retry_at(log, quota, wanted)
    local enough = log.total + wanted - quota
    if log.first_total >= enough then return log.first_time + log.window end
    local low, high = call('ZCOUNT', log.key, '-inf', score(log.live_from)), call('ZCARD', log.key) - 1
    while low < high do
      local middle = floor((low + high) / 2)
      if logs.parse(call('ZRANGE', log.key, middle, middle)[1]) >= enough then high = middle else low = middle + 1 end
    end
    return tonumber(call('ZRANGE', log.key, low, low, 'WITHSCORES')[2]) + log.window
  end

  -- Adds before it removes: an empty sorted set is deleted together with its time to live.
  local function replace(key, time, before, after)
    if before == after then return end
    call('ZADD', key, time, after)
    call('ZREM', key, before)
  end

  -- Subtracts 'amount' from the running totals of all entries after 'time'.
  local function shift(key, time, amount)
    local entries = call('ZRANGEBYSCORE', key, '(' .. score(time), '+inf', 'WITHSCORES')
    for i = 1, #entries, 2 do
      local total, own, window, standing = logs.parse(entries[i])
      replace(key, entries[i + 1], entries[i], member(total - amount, own, window, standing))
    end
  end

  function logs.append(log, standing, cost)
    local own, total = cost, log.total + cost
    if log.stale then
      call('UNLINK', log.key)
    elseif log.exists then
      call('ZREMRANGEBYSCORE', log.key, '-inf', score(log.live_from))
      if log.newest and total > MAX then
        shift(log.key, log.live_from, log.base)
        log.newest = member(log.total - log.base, log.newest_own, log.window, log.standing)
        total = total - log.base
      end
      -- Requests of the same microsecond expire together, so they share an entry.
      if log.newest and log.newest_time == log.time then
        call('ZREM', log.key, log.newest)
        own = own + log.newest_own
      end
    end
    call('ZADD', log.key, score(log.time), member(total, own, log.window, standing))
    expire(log.key, log.time + log.window)
  end

  -- Refunds up to the cost from the entry made at 'taken_at', or from the newest entries; returns
  -- whether anything was refunded.
  function logs.refund_log(log, cost, taken_at)
    if not log.newest then return false end
    if taken_at and (taken_at <= log.live_from or call('ZCOUNT', log.key, '(' .. score(taken_at), '+inf') > REFUND_REACH) then
      return false
    end
    local left = cost
    for _ = 1, REFUND_REACH do
      local entry
      if taken_at then
        entry = call('ZRANGEBYSCORE', log.key, score(taken_at), score(taken_at), 'WITHSCORES')
      else
        entry = call('ZREVRANGE', log.key, 0, 0, 'WITHSCORES')
      end
      if not entry[1] or tonumber(entry[2]) <= log.live_from then break end
      local total, own, window, standing = logs.parse(entry[1])
      local taken = math.min(own, left)
      -- Before anything is added, because a full Redis would reject that as the first write.
      if taken > 0 and left == cost then call('ZREMRANGEBYSCORE', log.key, '-inf', score(log.live_from)) end
      if taken < own then
        replace(log.key, entry[2], entry[1], member(total - taken, own - taken, window, standing))
      else
        call('ZREM', log.key, entry[1])
      end
      if taken_at then shift(log.key, taken_at, taken) end
      left = left - taken
      if taken_at or left == 0 then break end
    end
    return left < cost
  end

  function logs.set_log_standing(log, standing)
    if not log.newest then return end
    replace(log.key, score(log.newest_time), log.newest, member(log.total, log.newest_own, log.window, standing))
  end

  return logs
end

-- Several limits are evaluated in two rounds: first all of them, to decide whether the request is
-- admitted, then each one to charge it and to answer. A refund has two rounds as well, so that a
-- foreign value stops it before it writes.
local admitted, first_round, reply = 1, 1, nil
-- The numbers of the charges that need a new key, the last of these keys, whether they may be
-- created, and how many of them are long-lived.
local new, new_key, may_make, made = '', nil, false, 0
local rare, logs, uncharged
if count < 2 and action ~= 'f' then first_round = 2 end
for round = first_round, 2 do
  reply = ''
  for i = 1, count do
    local key = KEYS[i]
    local algorithm, flags, exponent, quota, capacity, cost, window, tick, ticks, unit, rate, units = unpack_struct(CHARGE, ARGV[1 + i])
    local shadow = flags % 2

    -- Read what is stored, if this algorithm wrote it over this window.
    local standing, a, b, c, stored_quota, stored_exponent = 0, nil, nil, nil, nil, nil
    local log, exists
    if algorithm == LOG then
      logs = logs or logging(now, injected)
      log = logs.read_log(key, window)
      if not log then return {err = FOREIGN .. i} end
      if log.ahead and round == 2 and action ~= 'p' then logs.correct(log) end
      standing, exists = log.standing, log.exists or log.stale
    else
      local text = try('GET', key)
      exists = text
      if text and text.err then
        -- A sliding log written by us is ignored under another algorithm; anything else is foreign.
        local newest = redis.pcall('ZREVRANGE', key, 0, 0)
        logs = logs or logging(now, injected)
        if newest.err or not logs.parse(newest[1]) then return {err = FOREIGN .. i} end
      elseif text then
        if #text ~= STATE_LENGTH then return {err = FOREIGN .. i} end
        local version, stored_algorithm, stored_standing, stored_window
        version, stored_algorithm, stored_standing, stored_exponent, stored_quota, stored_window, a, b, c = unpack_struct(STATE, text)
        if version ~= VERSION then return {err = FOREIGN .. i} end
        if stored_algorithm == algorithm and stored_window == window then
          standing = stored_standing
          local seen = b
          if algorithm == FIXED or algorithm == COUNTER then seen = a * window
          elseif stored_exponent > 0 then seen = b * 10 ^ stored_exponent end
          if seen > now + window then
            rare = rare or rarely(now)
            a, b, c = rare.taken_now(algorithm, window, stored_exponent, a, b, c)
            if round == 2 and action ~= 'p' then
              local text = pack(STATE, VERSION, algorithm, standing, stored_exponent, stored_quota, window, a, b, c)
              if try('SET', key, text, 'KEEPTTL').err then
                -- This removes nothing from a string, and counts as a write that needs no memory.
                try('ZREM', key, '')
                call('SET', key, text, 'KEEPTTL')
              end
            end
          end
        else
          a = nil
        end
      end
    end

    -- Bring it to now and compute what is left, which is all that a decision needs. A bucket has
    -- 'level' in use at tick 'at'.
    local level, at = 0, 0
    local number, current, previous, offset
    local left = 0
    if algorithm == FIXED then
      number, current = floor(now / window), 0
      if a and a >= number then number, current = a, b end
      if current < quota then left = quota - current end
    elseif algorithm == COUNTER then
      number, current, previous = floor(now / window), 0, 0
      offset = floor((now - number * window) / tick)
      if a then
        if a > number then
          number, current, previous, offset = a, b, c, 0
        elseif a == number then
          current, previous = b, c
        elseif a == number - 1 then
          previous = b
        end
      end
      if current < quota then
        local free = (quota - current) * ticks - previous * (ticks - offset)
        if free > 0 then left = floor(free / ticks) end
      end
    elseif algorithm == LOG then
      if log.used < quota then left = quota - log.used end
    else
      at = now
      if tick ~= 1 then at = floor(now / tick) end
      if a then
        if stored_quota ~= quota or stored_exponent ~= exponent then
          rare = rare or rarely(now)
          level, at = rare.convert(window, tick, unit, stored_quota, stored_exponent, a, b)
        elseif at >= b then
          level = a - (at - b) * rate
          if level < 0 then level = 0 end
        else
          level, at = a, b
        end
      end
      if level < units then left = floor((units - level) / unit) end
    end

    -- How much must fit, and how much is taken: the same, unless the charge takes nothing or may
    -- become debt.
    local wanted, amount = cost, cost
    if flags > 1 or cost == 0 then
      wanted = 1
      if flags > 1 then
        rare = rare or rarely(now)
        amount = math.min(cost, rare.remaining_with_debt(algorithm, quota, left, current, previous, log and log.used, level, unit, units))
        if flags > 3 then wanted = 0 end
      end
    end

    if round == 1 then
      if wanted > left then
        if shadow == 0 and action == 't' then admitted = 0 end
      elseif not exists and amount > 0 then
        new, new_key = new .. ' ' .. i, key
      end
    else
      local settled
      local changed = false
      if action == 'f' then
        wanted, amount = 1, 1
        rare = rare or rarely(now)
        settled = rare.settle(standing, left, capacity)
        local taken_at
        if extra ~= '' then
          taken_at = unpack_struct('<d', extra, 8 * i - 7)
          if taken_at < 0 then taken_at = nil end
        end
        if algorithm == LOG then
          changed = logs.refund_log(log, cost, taken_at)
          if changed then
            log = logs.read_log(key, window)
            left = math.max(quota - log.used, 0)
          end
        elseif algorithm == FIXED or algorithm == COUNTER then
          local before, before_previous = current, previous
          current, previous = rare.refund_windows(window, number, current, previous or 0, cost, taken_at)
          changed = current ~= before or (previous ~= before_previous and algorithm == COUNTER)
          left = math.max(quota - current, 0)
          if algorithm == COUNTER then left = math.max(floor((left * ticks - previous * (ticks - offset)) / ticks), 0) end
        elseif level > 0 then
          local before = level
          level = rare.refund_level(tick, unit, rate, level, at, cost, taken_at)
          changed = level ~= before
          left = 0
          if level < units then left = floor((units - level) / unit) end
        end
        if changed then
          standing = rare.settle(settled, left, capacity)
          if algorithm == LOG then logs.set_log_standing(log, standing) end
        end
      end

      -- Decide, and charge what is admitted.
      local allowed, reason, retry_at, delay, position = 1, 0, -1, 0, 0
      local previous_standing = standing
      if wanted > left then
        allowed = 0
        -- A shadow limit never denies, and is not charged if the cost does not fit.
        if shadow == 0 then admitted = 0 end
      elseif algorithm == LEAKY then
        -- The queue before this request: how long to wait, and at which position.
        delay, position = floor(level / rate), floor(level / unit)
        if delay * rate < level then delay = delay + 1 end
        if position * unit < level then position = position + 1 end
        delay, position = delay * tick, position + math.max(amount, 1)
        if delay > MAX then delay = MAX end
      end
      local charged = allowed == 1 and admitted == 1 and action == 't'
      if charged and amount < cost then
        uncharged = uncharged or {}
        uncharged[i] = cost - amount
      end
      charged = charged and amount > 0
      local left_before = left
      if charged then
        if not may_make and (record or new_key or not exists) then
          if count == 1 and not exists then new, new_key = ' 1', key end
          if known_only then return {err = NEW_KEY .. new} end
          -- If a string is the only key, it is written directly.
          if record or count > 1 or algorithm == LOG then
            local tried = try('SET', new_key or record, '', 'XX')
            if tried and tried.err then
              if string.find(tried.err, 'OOM ', 1, true) then return {err = FULL .. new} end
              call('SET', new_key or record, '', 'XX')
            end
          end
          may_make = true
          if record then made = 1 end
        end
        changed = true
        left = left - amount
        if left < 0 then left = 0 end
        if algorithm == FIXED or algorithm == COUNTER then
          current = current + amount
        elseif algorithm == LOG then
          log.used, log.fresh_at = log.used + amount, log.time + window
        else
          level = level + amount * unit
        end
      end

      local fresh_at = now
      if algorithm == FIXED then
        if current > 0 then fresh_at = (number + 1) * window end
      elseif algorithm == COUNTER then
        if current > 0 then fresh_at = (number + 2) * window
        elseif previous > 0 then fresh_at = (number + 1) * window end
      elseif algorithm == LOG then
        if log.used > 0 then fresh_at = log.fresh_at end
      elseif level > 0 then
        local ticks_left = floor(level / rate)
        if ticks_left * rate < level then ticks_left = ticks_left + 1 end
        fresh_at = (at + ticks_left) * tick
      end
      if fresh_at > MAX then fresh_at = MAX end

      -- Above 80 % used is a warning (1), below 70 % normal again (0), nothing left throttled (2);
      -- in between it is unchanged.
      if left * 100 > capacity * 30 then
        standing = 0
      elseif left == 0 then
        standing = 2
      elseif left * 100 < capacity * 20 then
        standing = 1
      elseif left_before * 100 > capacity * 30 then
        standing = 0
      elseif standing > 1 then
        standing = 1
      end
      if allowed == 0 then
        if wanted > capacity then
          reason = 2
        else
          reason, standing = 1, 2
          if algorithm == FIXED then
            retry_at = (number + 1) * window
          elseif algorithm == COUNTER then
            -- In this window if the previous count decays enough, else in the next, where this
            -- count decays, else in the one after.
            local room, faded = quota - current - wanted, ticks
            if room >= 0 then faded = ticks - floor(room * ticks / previous) end
            if faded < ticks then
              retry_at = number * window + faded * tick
            else
              room, faded = quota - wanted, 0
              if current > room then faded = ticks - floor(room * ticks / current) end
              if faded < ticks then retry_at = (number + 1) * window + faded * tick else retry_at = (number + 2) * window end
            end
          elseif algorithm == LOG then
            retry_at = logs.log_retry_at(log, quota, wanted)
          else
            local excess = level - (units - wanted * unit)
            local ticks_left = floor(excess / rate)
            if ticks_left * rate < excess then ticks_left = ticks_left + 1 end
            retry_at = (at + ticks_left) * tick
          end
          if retry_at > MAX then retry_at = MAX end
        end
      end

      -- Write last.
      if changed and algorithm ~= LOG then
        local written = standing
        if action == 'f' then written = previous_standing end
        if algorithm == FIXED then level, at, previous = number, current, 0
        elseif algorithm == COUNTER then level, at = number, current
        else previous = 0 end
        local text = pack(STATE, VERSION, algorithm, written, exponent, quota, window, level, at, previous)
        -- In the millisecond of its expiry, the state equals a fresh one.
        local until_when, time = 'PXAT', floor(fresh_at / 1000) + 1
        if injected then until_when, time = 'PX', TEST_TTL end
        local stored = try('SET', key, text, until_when, time)
        if stored.err then
          if exists then
            call('UNLINK', key)
          elseif string.find(stored.err, 'OOM ', 1, true) then
            return {err = FULL .. new}
          end
          call('SET', key, text, until_when, time)
        end
      elseif charged then
        logs.append(log, standing, amount)
      end
      if charged and not exists and fresh_at - now >= LONG_LIVED then made = made + 1 end
      if count == 1 then
        if made > 0 then status = 16 + made end
        reply = pack(HEAD_AND_ANSWER, status, now, admitted, allowed, reason, standing, previous_standing, left, position, fresh_at, retry_at, delay)
      else
        reply = reply .. pack(ANSWER, allowed, reason, standing, previous_standing, left, position, fresh_at, retry_at, delay)
      end
    end
  end
end

local recorded = record and admitted == 1 and action == 't'
if recorded and not may_make then
  -- Nothing was charged.
  if known_only then return {err = NEW_KEY} end
  made = 1
end
if count ~= 1 then
  if made > 0 then status = 16 + math.min(made, 200) end
  reply = pack('<BdB', status, now, admitted) .. reply
end
if uncharged then
  for i = 1, count do reply = reply .. pack('<I4', uncharged[i] or 0) end
end
if recorded then
  local until_when, time = 'PXAT', floor((now + RECORD_TTL) / 1000) + 1
  if injected then until_when, time = 'PX', TEST_TTL end
  local stored = try('SET', record, string.char(VERSION) .. extra .. reply, until_when, time)
  if stored.err then
    if string.find(stored.err, 'OOM ', 1, true) then return {err = FULL} end
    call('SET', record, string.char(VERSION) .. extra .. reply, until_when, time)
  end
end
return reply
