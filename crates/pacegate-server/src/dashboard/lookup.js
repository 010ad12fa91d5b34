// One user: the limits that hold for them and why, temporary overrides, and starting anew.

import { call, path } from './api.js';
import { mode } from './rules.js';
import { ask, badge, bar, element, failed, notice, onlyFor, replace, table, template } from './ui.js';
import { algorithm, count, duration, hasBurst, limit, time, until, why } from './words.js';

/** `[factor, seconds]` of the overrides that take two clicks. */
const PRESETS = [[2, 3_600], [10, 3_600]];
const QUOTA_MAX = 1_000_000_000;
/** Where a limit comes from a rule, and so can be overridden. */
const OF_RULES = ['override', 'identifier', 'custom', 'tier', 'anyone'];

export function show(content, session, userId) {
  content.replaceChildren(template('users-page'));
  const form = content.querySelector('#user-form');
  form.elements.user_id.value = userId;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const wanted = form.elements.user_id.value.trim();
    const address = `#/users/${encodeURIComponent(wanted)}`;
    if (location.hash !== address) location.hash = address;
    else if (wanted) load(content, session, wanted);
  });
  if (userId) load(content, session, userId);
  else content.querySelector('#user').replaceChildren(element('p', { class: 'empty' }, 'Type an id, or click a key on the live page.'));
}

async function load(content, session, userId) {
  const place = content.querySelector('#user');
  const again = () => load(content, session, userId);
  try {
    const [effective, { overrides }] = await Promise.all([
      call('GET', path(['users', userId, 'limits'])),
      call('GET', path(['users', userId, 'override'])),
    ]);
    replace(place,
      limitsCard(session, effective, again),
      overridesCard(session, userId, overrides, again));
  } catch (error) {
    place.replaceChildren(failed(error));
  }
}

function limitsCard(session, { user_id: userId, tier, limits }, again) {
  const title = element('h2', { class: 'identifier' }, userId);
  return element('section', { class: 'card', 'aria-label': 'Limits in force' },
    element('div', { class: 'card-head' }, title, tier ? badge(`tier ${tier}`) : badge('no tier'),
      element('button', { type: 'button', class: 'push', onclick: again }, 'Refresh')),
    table({
      caption: 'Limits in force', rows: limits, empty: 'No rule limits this user; the default limit applies, if there is one.',
      columns: [
        { title: 'Rule', kind: 'wide', cell: (row) => [element('b', { class: 'identifier' }, row.rule), ' ', row.mode === 'shadow' ? mode('shadow') : null, element('div', { class: 'sub' }, why(row.why))] },
        { title: 'Endpoint', kind: 'wide', cell: (row) => element('span', { class: 'identifier code' }, row.method ? `${row.method} ` : '', row.endpoint_pattern) },
        { title: 'Limit', cell: (row) => [limit(row), element('div', { class: 'sub' }, algorithm(row.algorithm))] },
        { title: 'Used', kind: 'use', cell: use },
        { title: 'Actions', kind: 'actions', cell: (row) => actions(session, userId, row, siblings(limits, row), again) },
      ],
    }));
}

function use(row) {
  if (row.current_count == null) return element('span', { class: 'sub' }, row.degraded ? 'not known: the store fails' : 'counted for each endpoint');
  const kind = { warning: 'warn', throttled: 'bad' }[row.state] ?? '';
  const state = row.state === 'normal' ? null : badge(row.state, kind);
  return [element('span', { class: 'numbers' }, `${count(row.current_count)} of ${count(row.burst_capacity ?? row.limit)}`), ' ', state, bar([row.usage_percentage / 100, kind])];
}

/** The other limits that an override of this one changes too: it holds for every rule of the name. */
const siblings = (limits, row) => limits.filter((other) => other !== row && other.rule === row.rule && OF_RULES.includes(other.why));

function alsoChanged(others) {
  if (others.length === 0) return null;
  const places = others.map((other) => `${other.method ? `${other.method} ` : ''}${other.endpoint_pattern} (now ${limit(other)})`);
  return element('p', { class: 'hint' }, element('b', {}, 'Also changed: '), `an override holds for every rule of this name, so for ${places.join(' and ')} too.`);
}

function actions(session, userId, row, others, again) {
  const button = (text, label, action) => onlyFor(session, element('button', { type: 'button', 'aria-label': label, onclick: action }, text));
  const buttons = [];
  if (OF_RULES.includes(row.why)) {
    for (const [factor, seconds] of PRESETS) {
      const text = `${factor}× for ${duration(seconds)}`;
      buttons.push(button(text, `${row.rule}: ${text}`, () => preset(userId, row, others, factor, seconds, again)));
    }
    buttons.push(button('Custom…', `${row.rule}: custom override`, () => custom(userId, row, others, again)));
  }
  buttons.push(button('Reset…', `${row.rule}: reset counters`, () => reset(userId, row, again)));
  return element('div', { class: 'buttons' }, buttons);
}

const override = (userId, body) => call('POST', path(['users', userId, 'override']), { body });

/** Says what was done, and shows the user as they are now. */
const afterwards = (text, again) => () => {
  notice(text);
  again();
};

function preset(userId, row, others, factor, seconds, again) {
  const times = (value) => Math.min(value * factor, QUOTA_MAX);
  const raised = { limit: times(row.limit), window_seconds: row.window_seconds };
  // Without it the bucket would shrink to one window's worth.
  if (hasBurst(row.algorithm)) raised.burst_capacity = times(row.burst_capacity);
  const end = new Date(Date.now() + seconds * 1_000);
  ask({
    title: `${factor}× ${row.rule} for ${duration(seconds)}?`, action: 'Override',
    text: element('div', {},
      element('p', {}, element('b', { class: 'identifier' }, userId), ` gets ${limit(raised)} instead of ${limit(row)} until ${time(end)}. What was used stays used.`),
      alsoChanged(others)),
    perform: () => override(userId, { ...raised, rule: row.rule, expires_in_seconds: seconds, reason: `${factor}× for ${duration(seconds)}, from the dashboard` }),
    done: afterwards(`Override for ${userId} is in force.`, again),
  });
}

function field(label, attributes) {
  const id = `override-${attributes.name}`;
  return element('div', { class: 'field' }, element('label', { for: id }, label), element('input', { id, autocomplete: 'off', ...attributes }));
}

function custom(userId, row, others, again) {
  const number = (text) => (text === '' ? undefined : Number.isFinite(Number(text)) ? Number(text) : text);
  const fields = element('div', { class: 'columns' },
    field(`Requests per ${duration(row.window_seconds)}`, { name: 'limit', inputmode: 'numeric', value: row.limit }),
    hasBurst(row.algorithm) ? field('Burst', { name: 'burst_capacity', inputmode: 'numeric', value: row.burst_capacity }) : null,
    field('For how many minutes', { name: 'expires_in_seconds', inputmode: 'numeric', value: 60 }),
    field('Why', { name: 'reason', placeholder: 'for the audit trail' }));
  ask({
    title: `Override ${row.rule} for ${userId}`, text: element('div', {}, fields, alsoChanged(others)), action: 'Override',
    perform: ({ elements }) => {
      const minutes = number(elements.expires_in_seconds.value.trim());
      return override(userId, {
        rule: row.rule, limit: number(elements.limit.value.trim()), window_seconds: row.window_seconds,
        burst_capacity: number(elements.burst_capacity?.value.trim() ?? ''),
        expires_in_seconds: typeof minutes === 'number' ? Math.round(minutes * 60) : minutes,
        reason: elements.reason.value.trim() || undefined,
      });
    },
    done: afterwards(`Override for ${userId} is in force.`, again),
  });
}

/** An endpoint that a pattern matches. */
function example(pattern) {
  if (pattern === '*') return '/';
  return pattern.replace(/\/?\{\*[^}]*\}$/, '').replace(/\{[^}]*\}/g, 'x') || '/';
}

function reset(userId, row, again) {
  const text = element('div', {},
    element('p', {}, 'Every limit that counts this user at the endpoint starts anew, as if nothing had been used.'),
    field('Endpoint', { name: 'endpoint', value: example(row.endpoint_pattern), spellcheck: 'false' }));
  ask({
    title: `Reset the counters of ${userId}?`, text, action: 'Reset', danger: true,
    perform: ({ elements }) => {
      const body = { user_id: userId, endpoint: elements.endpoint.value.trim() };
      if (row.method) body.method = row.method;
      return call('POST', path(['rate-limit', 'reset']), { body });
    },
    done: afterwards(`The counters of ${userId} start anew.`, again),
  });
}

function overridesCard(session, userId, overrides, again) {
  const remove = (row) => ask({
    title: `End the override of ${row.rule}?`, action: 'End it', danger: true,
    text: element('p', {}, 'The limits before hold again at once.'),
    perform: () => call('DELETE', path(['users', userId, 'override', row.id])),
    done: afterwards(`The override of ${row.rule} has ended.`, again),
  });
  return element('section', { class: 'card', 'aria-label': 'Overrides' },
    element('div', { class: 'card-head' }, element('h2', {}, 'Overrides that hold now')),
    table({
      caption: 'Overrides that hold now', rows: overrides, empty: 'None.',
      columns: [
        { title: 'Rule', cell: (row) => element('b', { class: 'identifier' }, row.rule) },
        { title: 'Limit', cell: (row) => (row.window_seconds ? limit(row) : `${count(row.limit)} a window`) },
        { title: 'Ends', cell: (row) => [`in ${until(new Date(row.expires_at))}`, element('div', { class: 'sub' }, time(row.expires_at))] },
        { title: 'Reason', kind: 'wide', cell: (row) => row.reason ?? '–' },
        { title: 'Actions', kind: 'actions', cell: (row) => onlyFor(session, element('button', { type: 'button', 'aria-label': `End the override of ${row.rule}`, onclick: () => remove(row) }, 'End')) },
      ],
    }));
}
