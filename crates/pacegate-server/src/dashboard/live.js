// What happens now.

import { Chart } from './chart.js';
import { SECONDS_KEPT } from './stream.js';
import { badge, bar, element, refresh, table, template } from './ui.js';
import { clock, count, milliseconds, rate, span } from './words.js';

const SAMPLES_LISTED = 15;

export function show(content, { stream }) {
  content.replaceChildren(template('live-page'));
  const chart = new Chart(content.querySelector('#chart'), SECONDS_KEPT, (sample, pointed) => readout(content, sample, pointed));
  return stream.listen(({ samples, last }) => {
    chart.show(samples);
    listSamples(content, samples);
    if (last) fill(content, last);
  });
}

function readout(content, sample, pointed) {
  const value = (name) => rate(sample?.[name]);
  content.querySelector('#readout').replaceChildren(
    element('span', { class: 'when' }, pointed && sample ? clock(sample.at) : 'now'),
    element('span', { class: 'key allowed' }, 'allowed ', element('b', {}, value('allowed'))),
    element('span', { class: 'key blocked' }, 'blocked ', element('b', {}, value('blocked'))),
  );
}

function fill(content, figures) {
  const { allowed_per_second: allowed, blocked_per_second: blocked, latency } = figures;
  const share = allowed + blocked > 0 ? `${Math.round((100 * blocked) / (allowed + blocked))} %` : '';
  const values = {
    allowed: rate(allowed), blocked: rate(blocked), share, degraded: rate(figures.degraded_per_second),
    p50: milliseconds(latency.p50_ms), p95: milliseconds(latency.p95_ms), p99: milliseconds(latency.p99_ms),
    connections: count(figures.connections), uptime: span(figures.uptime_seconds, 1),
  };
  for (const [name, value] of Object.entries(values)) content.querySelector(`[data-figure=${name}]`).textContent = value;
  content.querySelector('#not-ready').hidden = figures.ready;
  refresh(content.querySelector('#heaviest'), keys('Heaviest keys', figures.heaviest, 'allowed'));
  refresh(content.querySelector('#most-blocked'), keys('Most blocked keys', figures.most_blocked, 'blocked'));
  content.querySelector('#by-rule').replaceChildren(rules(figures.rules));
  content.querySelector('#stores').replaceChildren(stores(figures.stores));
}

/** The link to a user's page; keys of other dimensions have none. */
export function identity({ dimension, identifier }) {
  const text = element('span', { class: 'identifier', title: identifier }, identifier);
  if (dimension !== 'user') return [element('span', { class: 'dimension' }, dimension), ' ', text];
  return [element('span', { class: 'dimension' }, 'user'), ' ', element('a', { href: `#/users/${encodeURIComponent(identifier)}` }, text)];
}

function keys(caption, rows, name) {
  const size = (row) => (name === 'blocked' ? row.blocked : row.allowed + row.blocked);
  const most = Math.max(1, ...rows.map(size));
  const parts = (row) => (name === 'blocked' ? [] : [[row.allowed / most, 'allowed']]).concat([[row.blocked / most, 'blocked']]);
  const empty = name === 'blocked' ? 'Nobody was blocked.' : 'No checks yet.';
  return table({
    caption, rows: rows.slice(0, 8), empty,
    columns: [
      { title: 'Key', cell: (row) => [...identity(row), bar(...parts(row))], kind: 'wide' },
      { title: 'Allowed', number: true, cell: (row) => count(row.allowed) },
      { title: 'Blocked', number: true, cell: (row) => count(row.blocked) },
    ],
  });
}

function rules(rows) {
  return table({
    caption: 'Decisions by rule', rows: rows.slice(0, 10), empty: 'No checks yet.',
    columns: [
      { title: 'Rule', cell: (row) => element('span', { class: 'identifier', title: row.rule }, row.rule || 'no rule'), kind: 'wide' },
      { title: 'Allowed', number: true, cell: (row) => count(row.allowed) },
      { title: 'Blocked', number: true, cell: (row) => count(row.blocked) },
      { title: 'Would block', number: true, cell: (row) => count(row.shadow_blocked) },
    ],
  });
}

const HEALTH = { up: ['up', 'good'], down: ['does not answer', 'bad'], rejected: ['refuses to work', 'bad'] };
const BREAKER = { closed: ['closed', 'good'], half_open: ['trying again', 'warn'], open: ['open', 'bad'] };

function stores(rows) {
  return table({
    caption: 'Stores', rows, empty: 'There are none.',
    columns: [
      { title: 'Store', cell: (row) => row.name },
      { title: 'Health', cell: (row) => badge(...(HEALTH[row.health] ?? [row.health])) },
      { title: 'Breaker', cell: (row) => badge(...(BREAKER[row.breaker] ?? [row.breaker])) },
      { title: 'Keys', number: true, cell: (row) => count(row.keys) },
      { title: 'Errors', number: true, cell: (row) => count(row.errors) },
    ],
  });
}

/** The chart for those who do not see it. It changes every second, so it is made only while it is open. */
function listSamples(content, samples) {
  if (!content.querySelector('#samples').open) return;
  const rows = samples.filter(({ figures }) => figures).slice(-SAMPLES_LISTED).reverse();
  content.querySelector('#samples-table').replaceChildren(table({
    caption: 'Checks per second', rows, empty: 'No figures yet.',
    columns: [
      { title: 'Time', cell: ({ at }) => clock(at) },
      { title: 'Allowed', number: true, cell: ({ figures }) => rate(figures.allowed_per_second) },
      { title: 'Blocked', number: true, cell: ({ figures }) => rate(figures.blocked_per_second) },
      { title: 'p99 ms', number: true, cell: ({ figures }) => milliseconds(figures.latency.p99_ms) },
    ],
  }));
}
