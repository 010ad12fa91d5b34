// Numbers, times and names as people read them.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const count = (value) => (value == null ? '–' : whole.format(value));

/** Few digits, so that a figure that changes every second does not jump about. */
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

/** `2 d 3 h`: the two largest parts, or as many as are wanted. */
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

/** What each algorithm is called, and what it is good for. */
export const ALGORITHMS = {
  token_bucket: ['Token bucket', 'Refills steadily and allows bursts up to its size. A good first choice.'],
  gcra: ['GCRA', 'Spaces requests evenly, with a burst on top; keeps the least state.'],
  sliding_counter: ['Sliding counter', 'A window that slides, estimated from two counters. Cheap for long windows.'],
  sliding_log: ['Sliding log', 'Exact in every window, at the cost of remembering each request.'],
  fixed_window: ['Fixed window', 'Starts anew at the full minute, hour or day. Simple; up to twice the limit around its edge.'],
  leaky_bucket: ['Leaky bucket', 'A queue that drains at a constant rate.'],
};
export const algorithm = (name) => ALGORITHMS[name]?.[0] ?? name ?? '';
/** Those that can hold more than one window's worth. */
export const hasBurst = (name) => ['token_bucket', 'leaky_bucket', 'gcra'].includes(name);

const WHY = {
  override: 'a temporary override',
  identifier: 'a rule for exactly this id',
  custom: 'limits of this user’s own',
  tier: 'a rule for the user’s tier',
  anyone: 'a rule for everybody',
  plan: 'a plan',
  ad_hoc: 'a limit of the request’s own',
  default: 'the default limit',
};
export const why = (name) => WHY[name] ?? name;

/** Whom a rule is for. */
export function audience({ dimension, identifier, tier }) {
  const who = identifier ? `${dimension} ${identifier}` : `every ${dimension}`;
  return tier ? `${who} of tier ${tier}` : who;
}
