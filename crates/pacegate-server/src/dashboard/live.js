// Current figures and the chart of the last 15 minutes.

import { Chart } from './chart.js';
import { address } from './lookup.js';
import { SECONDS_KEPT } from './stream.js';
import { badge, bar, element, folds, narrow, refresh, table, template } from './ui.js';
import { clock, count, milliseconds, rate, span } from './words.js';

const SAMPLES_LISTED = 15;

export function show(content, { stream }) {
  content.replaceChildren(template('live-page'));
  const unfold = folds(content.querySelectorAll('details.fold'));
  const chart = new Chart(content.querySelector('#chart'), SECONDS_KEPT, (sample, pointed) => readout(content, sample, pointed));
  const stop = stream.listen(({ samples, last }) => {
    chart.show(samples);
    listSamples(content, samples);
    if (last) fill(content, last);
  });
  return () => {
    stop();
    unfold();
  };
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

/** A key with a link to its limits. The sum of the other keys has none. */
function identity({ dimension, identifier }) {
  const text = element('span', { class: 'identifier', title: identifier }, identifier);
  const isKey = identifier !== '(others)' && dimension !== '(others)';
  return [element('span', { class: 'dimension' }, dimension), ' ', isKey ? element('a', { href: address(dimension, identifier) }, text) : text];
}

function keys(caption, rows, name) {
  const size = (row) => (name === 'blocked' ? row.blocked : row.allowed + row.blocked);
  const most = Math.max(1, ...rows.map(size));
  const parts = (row) => (name === 'blocked' ? [] : [[row.allowed / most, 'allowed']]).concat([[row.blocked / most, 'blocked']]);
  const empty = name === 'blocked' ? 'No blocked requests in this period.' : 'No checks in this period.';
  return table({
    caption, rows: rows.slice(0, narrow() ? 5 : 8), empty,
    columns: [
      { title: 'Key', cell: (row) => [...identity(row), bar(...parts(row))], kind: 'wide' },
      { title: 'Allowed', number: true, cell: (row) => count(row.allowed) },
      { title: 'Blocked', number: true, cell: (row) => count(row.blocked) },
    ],
  });
}

function rules(rows) {
  return table({
    caption: 'Decisions by rule', rows: rows.slice(0, narrow() ? 5 : 10), empty: 'No checks yet.',
    columns: [
      { title: 'Rule', cell: (row) => element('span', { class: 'identifier', title: row.rule }, row.rule || 'no rule'), kind: 'wide' },
      { title: 'Allowed', number: true, cell: (row) => count(row.allowed) },
      { title: 'Blocked', number: true, cell: (row) => count(row.blocked) },
      { title: 'Would block', number: true, cell: (row) => count(row.shadow_blocked) },
    ],
  });
}

const HEALTH = { up: ['up', 'good'], down: ['unavailable', 'bad'], rejected: ['rejects this service', 'bad'] };
const BREAKER = { closed: ['closed', 'good'], half_open: ['half open', 'warn'], open: ['open', 'bad'] };

function stores(rows) {
  return table({
    caption: 'Stores', rows, empty: 'None.',
    columns: [
      { title: 'Store', cell: (row) => row.name },
      { title: 'Health', cell: (row) => badge(...(HEALTH[row.health] ?? [row.health])) },
      { title: 'Circuit breaker', cell: (row) => badge(...(BREAKER[row.breaker] ?? [row.breaker])) },
      { title: 'Keys', number: true, cell: (row) => count(row.keys) },
      { title: 'Errors', number: true, cell: (row) => count(row.errors) },
    ],
  });
}

/** The chart as a table, for screen readers. It is built only while it is open. */
function listSamples(content, samples) {
  if (!content.querySelector('#samples').open) return;
  const rows = samples.filter(({ figures }) => figures).slice(-SAMPLES_LISTED).reverse();
  content.querySelector('#samples-table').replaceChildren(table({
    caption: 'Checks per second', rows, empty: 'No figures yet.', all: true,
    columns: [
      { title: 'Time', cell: ({ at }) => clock(at) },
      { title: 'Allowed', number: true, cell: ({ figures }) => rate(figures.allowed_per_second) },
      { title: 'Blocked', number: true, cell: ({ figures }) => rate(figures.blocked_per_second) },
      { title: 'p99 ms', number: true, cell: ({ figures }) => milliseconds(figures.latency?.p99_ms) },
    ],
  }));
}
