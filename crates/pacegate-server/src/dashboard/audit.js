// The audit trail: changes, with the values before and after.

import { call, path } from './api.js';
import { element, failed, narrow, template } from './ui.js';
import { algorithm, audience, count, duration, limit, time } from './words.js';

/** Fields that every change changes. */
const NOISE = ['version', 'updated_at', 'created_at'];

export function show(content) {
  content.replaceChildren(template('audit-page'));
  const form = content.querySelector('#audit-form');
  const list = content.querySelector('#audit-list');
  const more = content.querySelector('#more-audit');
  const size = narrow() ? 6 : 50;
  let [cursor, filters] = [null, {}];
  const load = async () => {
    try {
      const page = await call('GET', path(['audit'], { ...filters, cursor, limit: size }));
      list.append(...page.records.map(entry));
      cursor = page.next_cursor;
      more.hidden = cursor === null;
      content.querySelector('#audit-count').textContent = list.children.length ? '' : 'No change matches.';
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

/** What each action is called. */
const ACTIONS = {
  'rule.create': 'Rule created', 'rule.update': 'Rule changed', 'rule.delete': 'Rule deleted',
  'plan.put': 'Plan set', 'plan.delete': 'Plan deleted',
  'user.put': 'User changed', 'user.delete': 'User deleted', 'user.import': 'Users imported',
  'key.create': 'API key created', 'key.revoke': 'API key revoked',
  'override.create': 'Override created', 'override.delete': 'Override ended', 'counters.reset': 'Counters reset',
  'audit.seal': 'Catalog sealed', 'audit.key': 'Audit key changed', 'audit.broken': 'Audit trail altered outside Pacegate',
};

function entry(record) {
  const now = record.after ?? record.before ?? {};
  const identity = now.identities?.map(({ dimension, identifier }) => `${dimension} ${identifier}`).join(', ')
    ?? (now.dimension && now.identifier && !now.name ? `${now.dimension} ${now.identifier}` : null)
    ?? (record.user_id && `user ${record.user_id}`);
  const about = [now.name ?? now.rule, identity].filter(Boolean).join(' · ') || record.subject;
  const by = record.actor === 'configured' ? 'the configured admin key' : `key ${record.actor}`;
  return element('li', {},
    element('div', { class: 'trail-head' },
      element('b', { title: record.action }, ACTIONS[record.action] ?? record.action),
      element('span', { class: 'identifier' }, about),
      element('time', { datetime: record.at, title: record.at }, time(record.at))),
    summary(now),
    element('p', { class: 'sub' }, `by ${by}`, record.address ? ` from ${record.address}` : '', ` · #${record.sequence}`),
    changes(record.before, record.after));
}

/** A rule or an override in one line. */
function summary({ limit: quota, window_seconds: window, dimension, endpoint_pattern: endpoint, mode, ...rest }) {
  if (!quota) return null;
  const text = !window ? `${count(quota)} per window` : limit({ limit: quota, window_seconds: window, burst_capacity: rest.burst_capacity });
  return element('p', { class: 'identifier' }, [text, dimension && audience({ dimension, ...rest }), endpoint, mode].filter(Boolean).join(' · '));
}

const LABELS = {
  endpoint_pattern: 'endpoint', burst_capacity: 'burst', window_seconds: 'window', on_store_error: 'store unavailable',
  custom_limits: 'custom limits', key_id: 'key id', rule_id: 'rule id', user_id: 'user', override_id: 'override id',
};

/** `expires_at_micros` is `expires at`, `endpoint_pattern` is `endpoint`. */
const label = (name) => LABELS[name] ?? name.replace(/_(micros|seconds)$/, '').replaceAll('_', ' ');

/** A value as people read it: times and durations by the name of the field. */
function value(name, given) {
  if (name.endsWith('_at_micros')) return time(given / 1_000);
  if (name.endsWith('_at')) return time(given);
  if (name.endsWith('_micros')) return duration(given / 1_000_000);
  if (name.endsWith('_seconds') || name === 'hold' || name === 'lease') return typeof given === 'number' ? duration(given) : String(given);
  if (name === 'algorithm') return algorithm(given);
  if (typeof given === 'number') return count(given);
  if (typeof given === 'boolean') return given ? 'yes' : 'no';
  if (typeof given === 'string') return given;
  if (Array.isArray(given)) return given.map((item) => value('', item)).join(', ') || 'none';
  const parts = Object.entries(given ?? {}).filter(([, part]) => part != null).map(([part, own]) => `${label(part)} ${value(part, own)}`);
  return parts.join(', ') || 'none';
}

function changes(before, after) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const differ = names.filter((name) => !NOISE.includes(name) && JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  const rows = differ.filter((name) => (before?.[name] ?? after?.[name]) != null).map((name) => {
    const [old, now] = [before?.[name], after?.[name]];
    return element('div', {},
      element('dt', {}, label(name)),
      element('dd', {},
        old == null ? null : element('del', { class: 'identifier' }, value(name, old)),
        old != null && now != null ? element('span', { 'aria-hidden': 'true' }, ' → ') : null,
        now == null ? null : element('ins', { class: 'identifier' }, value(name, now))));
  });
  if (!rows.length) return '';
  const list = element('dl', { class: 'changes' }, rows);
  // What was created or deleted has all its fields, which are shown on demand.
  if (before && after) return list;
  return element('details', {}, element('summary', {}, before ? 'Deleted values' : 'All values'), list);
}
