// Formats numbers, times and names.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const count = (value) => (value == null ? '–' : whole.format(value));

/** Few digits, so that the width of a figure that changes every second is stable. */
export function rate(value) {
  if (value == null) return '–';
  if (value >= 10_000) return short.format(value);
  return value > 0 && value < 10 ? value.toFixed(1) : whole.format(value);
}

export function milliseconds(value) {
  if (value == null) return '–';
  if (value >= 100) return whole.format(value);
  return value >= 1 ? value.toFixed(1) : value.toFixed(3);
}

const UNITS = [['day', 86_400], ['hour', 3_600], ['minute', 60], ['second', 1]];

const precise = new Intl.NumberFormat('en', { maximumFractionDigits: 3 });

/** `1 hour`, `90 seconds`, `1.5 seconds`, `500 ms`. */
export function duration(seconds) {
  if (seconds < 1) return `${precise.format(seconds * 1_000)} ms`;
  const [name, size] = UNITS.find(([, size]) => seconds >= size && seconds % size === 0) ?? ['second', 1];
  const amount = seconds / size;
  return `${precise.format(amount)} ${name}${amount === 1 ? '' : 's'}`;
}

/** `2 d 3 h`: the two largest units, or `wanted` of them. */
export function span(seconds, wanted = 2) {
  const rest = Math.max(0, Math.round(seconds));
  const parts = [[Math.floor(rest / 86_400), 'd'], [Math.floor(rest / 3_600) % 24, 'h'], [Math.floor(rest / 60) % 60, 'min'], [rest % 60, 's']];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return '0 s';
  return parts.slice(first, first + wanted).filter(([amount]) => amount > 0).map(([amount, unit]) => `${amount} ${unit}`).join(' ');
}

/** `100 per minute, burst 20`, or `900 tokens per minute`. */
export function limit({ limit: quota, window_seconds: window, burst_capacity: burst, unit, unlimited }) {
  if (unlimited) return 'unlimited';
  const per = duration(window).replace(/^1 (?!ms)/, '');
  return `${count(quota)}${unit ? ` ${unit}` : ''} per ${per}${burst && burst !== quota ? `, burst ${count(burst)}` : ''}`;
}

/** `GET `, `GET, POST `, or nothing for every method. */
export const methods = (rule) => (rule.methods?.join(', ') ?? rule.method ?? '').replace(/(.)$/, '$1 ');

export const time = (text) => new Date(text).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });
export const clock = (date) => date.toLocaleTimeString('en-GB');

export function until(date) {
  return span((date.getTime() - Date.now()) / 1_000);
}

/** The name of each algorithm and when to use it. */
export const ALGORITHMS = {
  token_bucket: ['Token bucket', 'Refills steadily and allows bursts up to its size. A good first choice.'],
  gcra: ['GCRA', 'Spaces requests evenly and allows a burst. Stores the least state.'],
  sliding_counter: ['Sliding counter', 'A sliding window estimated from two counters. Cheap for long windows.'],
  sliding_log: ['Sliding log', 'Exact in every window. Stores the time of each request.'],
  fixed_window: ['Fixed window', 'Resets at the full minute, hour or day. Allows up to twice the limit around a reset.'],
  leaky_bucket: ['Leaky bucket', 'A queue that drains at a constant rate.'],
};
export const algorithm = (name) => ALGORITHMS[name]?.[0] ?? name ?? '';
/** Whether the algorithm has a burst capacity. */
export const hasBurst = (name) => ['token_bucket', 'leaky_bucket', 'gcra'].includes(name);

const SOURCES = {
  override: 'temporary override',
  identifier: 'rule for this identifier',
  custom: 'custom limit of this user',
  tier: 'rule for this tier',
  anyone: 'rule for all',
  plan: 'plan',
  ad_hoc: 'ad-hoc limit of the request',
  default: 'default limit',
};
/** Where a limit comes from. */
export const source = (name) => SOURCES[name] ?? name;

const REASONS = {
  LIMIT_EXCEEDED: 'rate limit exceeded',
  COST_EXCEEDS_LIMIT: 'cost exceeds the limit',
  FAIL_OPEN: 'store unavailable: failed open',
  FAIL_CLOSED: 'store unavailable: failed closed',
  LOCAL_FALLBACK: 'store unavailable: local counters',
};
/** Why a request was denied, or how it was decided without its store. */
export const reason = (name) => REASONS[name] ?? name;

const DIMENSIONS = { user: 'User', ip: 'IP address', apikey: 'API key' };
export const dimensionName = (dimension) => DIMENSIONS[dimension] ?? dimension;

/** Which requests a rule counts. */
export function audience({ dimension, identifier, tier }) {
  const name = dimension === 'user' ? 'user' : dimensionName(dimension);
  const who = identifier ? `${name} ${identifier}` : `every ${name}`;
  return tier ? `${who} of tier ${tier}` : who;
}
