// The decision log, filtered and page by page.

import { call, path } from './api.js';
import { address } from './lookup.js';
import { badge, element, narrow, showError, submits, table, template } from './ui.js';
import { count, reason, time } from './words.js';

export function show(content) {
  content.replaceChildren(template('log-page'));
  const form = content.querySelector('#log-form');
  const more = content.querySelector('#more-log');
  const size = narrow() ? 6 : 50;
  let [cursor, filters, shown, turn] = [null, {}, [], 0];
  const load = async () => {
    const own = turn;
    const page = await call('GET', path(['logs'], { ...filters, cursor, limit: size }));
    // The filters were changed while this page was loading.
    if (own !== turn) return;
    shown = shown.concat(page.decisions);
    cursor = page.next_cursor;
    more.hidden = cursor === null;
    content.querySelector('#log-count').textContent = shown.length ? `${count(shown.length)} decision${shown.length === 1 ? '' : 's'} shown` : '';
    content.querySelector('#log-table').replaceChildren(decisions(shown));
  };
  const start = () => {
    const { allowed, since } = form.elements;
    const seconds = Number(since.value);
    filters = { allowed: allowed.value, since: seconds ? Math.floor(Date.now() / 1_000) - seconds : '' };
    for (const name of ['user_id', 'identifier', 'rule', 'endpoint']) filters[name] = form.elements[name].value.trim();
    [cursor, shown] = [null, []];
    turn += 1;
    return load();
  };
  submits(form, form.querySelector('[type=submit]'), start);
  more.addEventListener('click', () => load().catch((error) => showError(form, error)));
  start().catch((error) => showError(form, error));
}

function key({ dimension, identifier }) {
  if (!dimension) return '–';
  return [element('span', { class: 'dimension' }, dimension), ' ', element('a', { href: address(dimension, identifier) }, element('span', { class: 'identifier' }, identifier))];
}

function decisions(rows) {
  return table({
    caption: 'Decisions', rows, empty: 'No logged decision matches.', all: true,
    columns: [
      { title: 'Time', kind: 'when', cell: (row) => element('time', { datetime: row.at, title: row.at }, time(row.at)) },
      { title: 'Decision', cell: (row) => [row.allowed ? badge('allowed', 'good') : badge('denied', 'bad'), row.reason ? element('div', { class: 'sub' }, reason(row.reason)) : null] },
      { title: 'Key', kind: 'wide', cell: key },
      { title: 'Endpoint', kind: 'wide', cell: (row) => [element('span', { class: 'identifier code' }, row.method ? `${row.method} ` : '', row.endpoint), row.request_id ? element('div', { class: 'sub code request' }, row.request_id) : null] },
      { title: 'Rule', cell: (row) => element('span', { class: 'identifier' }, row.rule ?? 'none') },
      { title: 'Remaining', number: true, cell: (row) => (row.remaining == null ? '–' : `${count(row.remaining)} of ${count(row.limit)}`) },
    ],
  });
}
