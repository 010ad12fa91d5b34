// Who changed what, with what it was before and after.

import { call, path } from './api.js';
import { element, failed, template } from './ui.js';
import { audience, count, limit, time } from './words.js';

const PAGE = 50;
/** What every change changes, and nobody wants to read. */
const NOISE = ['version', 'updated_at'];

export function show(content) {
  content.replaceChildren(template('audit-page'));
  const form = content.querySelector('#audit-form');
  const list = content.querySelector('#audit-list');
  const more = content.querySelector('#more-audit');
  let [cursor, filters] = [null, {}];
  const load = async () => {
    try {
      const page = await call('GET', path(['audit'], { ...filters, cursor, limit: PAGE }));
      list.append(...page.records.map(entry));
      cursor = page.next_cursor;
      more.hidden = cursor === null;
      content.querySelector('#audit-count').textContent = list.children.length ? '' : 'Nothing was changed, as far as these filters go.';
    } catch (error) {
      list.append(element('li', {}, failed(error)));
    }
  };
  const start = () => {
    const seconds = Number(form.elements.since.value);
    filters = {
      user: form.elements.user.value.trim(), actor: form.elements.actor.value.trim(),
      since: seconds ? Math.floor(Date.now() / 1_000) - seconds : '',
    };
    cursor = null;
    list.replaceChildren();
    return load();
  };
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    start();
  });
  more.addEventListener('click', load);
  start();
}

function entry(record) {
  const name = record.after?.name ?? record.before?.name ?? record.after?.rule ?? record.before?.rule;
  const about = [name, record.user_id && `user ${record.user_id}`].filter(Boolean).join(' · ') || record.subject;
  return element('li', {},
    element('div', { class: 'trail-head' },
      element('b', { class: 'code' }, record.action),
      element('span', { class: 'identifier' }, about),
      element('time', { datetime: record.at, title: record.at }, time(record.at))),
    summary(record.after ?? record.before ?? {}),
    element('p', { class: 'sub' }, `with key ${record.actor}`, record.address ? ` from ${record.address}` : '', ` · record ${record.sequence}`),
    changes(record.before, record.after));
}

/** What a rule or an override says, in a line. */
function summary({ limit: quota, window_seconds: window, dimension, endpoint_pattern: endpoint, mode, ...rest }) {
  if (!quota) return null;
  const text = !window ? `${count(quota)} a window` : limit({ limit: quota, window_seconds: window, burst_capacity: rest.burst_capacity });
  return element('p', { class: 'identifier' }, [text, dimension && audience({ dimension, ...rest }), endpoint, mode].filter(Boolean).join(' · '));
}

function changes(before, after) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
  const differ = names.filter((name) => !NOISE.includes(name) && JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  const rows = differ.filter((name) => (before?.[name] ?? after?.[name]) != null).map((name) => {
    const [old, now] = [before?.[name], after?.[name]];
    return element('div', {},
      element('dt', {}, name),
      element('dd', {},
        old == null ? null : element('del', { class: 'identifier' }, text(old)),
        old != null && now != null ? element('span', { 'aria-hidden': 'true' }, ' → ') : null,
        now == null ? null : element('ins', { class: 'identifier' }, text(now))));
  });
  if (!rows.length) return '';
  const list = element('dl', { class: 'changes' }, rows);
  // What is new or gone has all its fields; those who want them open them.
  if (before && after) return list;
  return element('details', {}, element('summary', {}, before ? 'All that it was' : 'All that it is'), list);
}
