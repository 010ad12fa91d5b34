// One user, address, API key or other identity: limits in force, overrides, tier, reset.

import { call, path } from './api.js';
import { mode } from './rules.js';
import { ask, badge, bar, element, failed, notice, onlyFor, replace, table, template } from './ui.js';
import { algorithm, count, dimensionName, duration, hasBurst, limit, source, time, until } from './words.js';

/** `[factor, seconds]` of the overrides that have a button. */
const PRESETS = [[2, 3_600], [10, 3_600]];
const QUOTA_MAX = 1_000_000_000;
/** Sources of limits that come from a rule, and so can be overridden. */
const OF_RULES = ['override', 'identifier', 'custom', 'tier', 'anyone'];

export const address = (dimension, identifier) => `#/lookup/${encodeURIComponent(dimension)}/${encodeURIComponent(identifier)}`;

/** The path of an identity in the API. Only users have a tier. */
const base = ({ dimension, identifier }) => (dimension === 'user' ? ['users', identifier] : ['identities', dimension, identifier]);

export function show(content, session, [dimension = 'user', identifier = '']) {
  content.replaceChildren(template('lookup-page'));
  const form = content.querySelector('#lookup-form');
  const choice = form.elements.dimension;
  addDimension(choice, dimension);
  choice.value = dimension;
  form.elements.identifier.value = identifier;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const wanted = { dimension: choice.value, identifier: form.elements.identifier.value.trim() };
    const place = address(wanted.dimension, wanted.identifier);
    if (location.hash !== place) location.hash = place;
    else if (wanted.identifier) load(content, session, wanted);
  });
  const rules = knownRules(choice);
  if (identifier) load(content, { ...session, rules }, { dimension, identifier });
  else content.querySelector('#lookup').replaceChildren(element('p', { class: 'empty' }, 'Enter an identifier, or click a key on the live page.'));
}

function addDimension(choice, dimension) {
  if ([...choice.options].every(({ value }) => value !== dimension)) choice.append(new Option(dimensionName(dimension), dimension));
}

/** The rules, for the dimensions and tiers that they name. Lookups work without them. */
async function knownRules(choice) {
  try {
    const { rules } = await call('GET', path(['rules'], { limit: 1_000 }));
    for (const { dimension } of rules) addDimension(choice, dimension);
    return rules;
  } catch {
    return [];
  }
}

async function load(content, session, identity) {
  const place = content.querySelector('#lookup');
  const again = () => load(content, session, identity);
  try {
    const [effective, { overrides }] = await Promise.all([
      call('GET', path([...base(identity), 'limits'])),
      call('GET', path([...base(identity), 'override'])),
    ]);
    // An IPv6 address is counted by its prefix.
    const counted = { ...identity, identifier: effective.identifier ?? identity.identifier };
    replace(place,
      limitsCard(session, counted, effective, again),
      overridesCard(session, counted, overrides, effective.limits, again));
  } catch (error) {
    place.replaceChildren(failed(error));
  }
}

function limitsCard(session, identity, { tier, limits }, again) {
  const isUser = identity.dimension === 'user';
  const tierButton = () => onlyFor(session, element('button', { type: 'button', onclick: () => setTier(session, identity, tier, again) }, 'Set tier…'));
  return element('section', { class: 'card', 'aria-label': 'Limits in force' },
    element('div', { class: 'card-head' },
      element('span', { class: 'dimension' }, dimensionName(identity.dimension)),
      element('h2', { class: 'identifier' }, identity.identifier),
      isUser ? badge(tier ? `tier ${tier}` : 'no tier') : null,
      element('div', { class: 'buttons push' }, isUser ? tierButton() : null,
        element('button', { type: 'button', onclick: again }, 'Refresh'))),
    table({
      caption: 'Limits in force', rows: limits, empty: 'No rule applies. The default limit applies, if one is configured.',
      columns: [
        { title: 'Rule', kind: 'wide', cell: (row) => [element('b', { class: 'identifier' }, row.rule), ' ', row.mode === 'shadow' ? mode('shadow') : null, element('div', { class: 'sub' }, source(row.why))] },
        { title: 'Endpoint', kind: 'wide', cell: (row) => element('span', { class: 'identifier code' }, row.method ? `${row.method} ` : '', row.endpoint_pattern) },
        { title: 'Limit', cell: (row) => [limit(row), element('div', { class: 'sub' }, algorithm(row.algorithm))] },
        { title: 'Used', kind: 'use', cell: use },
        { title: 'Actions', kind: 'actions', cell: (row) => actions(session, identity, row, siblings(limits, row), again) },
      ],
    }));
}

function use(row) {
  if (row.unlimited) return element('span', { class: 'sub' }, 'not counted');
  if (row.current_count == null) return element('span', { class: 'sub' }, row.degraded ? 'unknown: store unavailable' : 'counted per endpoint');
  const kind = { warning: 'warn', throttled: 'bad' }[row.state] ?? '';
  const state = row.state === 'normal' ? null : badge(row.state, kind);
  return [element('span', { class: 'numbers' }, `${count(row.current_count)} of ${count(row.burst_capacity ?? row.limit)}`), ' ', state, bar([row.usage_percentage / 100, kind])];
}

/** The other limits that an override of this one changes: it applies to all rules of the name. */
const siblings = (limits, row) => limits.filter((other) => other !== row && other.rule === row.rule && OF_RULES.includes(other.why));

function alsoChanged(others) {
  if (others.length === 0) return null;
  const places = others.map((other) => `${other.method ? `${other.method} ` : ''}${other.endpoint_pattern} (now ${limit(other)})`);
  return element('p', { class: 'hint' }, element('b', {}, 'Also changed: '), `an override applies to every rule with this name, including ${places.join(' and ')}.`);
}

function actions(session, identity, row, others, again) {
  const button = (text, label, action) => onlyFor(session, element('button', { type: 'button', 'aria-label': label, onclick: action }, text));
  const buttons = [];
  if (OF_RULES.includes(row.why) && !row.unlimited) {
    for (const [factor, seconds] of PRESETS) {
      const text = `${factor}× for ${duration(seconds)}`;
      buttons.push(button(text, `${row.rule}: ${text}`, () => preset(identity, row, others, factor, seconds, again)));
    }
    buttons.push(button('Custom…', `${row.rule}: custom override`, () => custom(identity, row, others, again)));
  }
  buttons.push(button('Reset…', `${row.rule}: reset counters`, () => reset(identity, row, again)));
  return element('div', { class: 'buttons' }, buttons);
}

const override = (identity, body) => call('POST', path([...base(identity), 'override']), { body });

/** Reports what was done and reloads the page. */
const afterwards = (text, again) => () => {
  notice(text);
  again();
};

function preset(identity, row, others, factor, seconds, again) {
  const times = (value) => Math.min(value * factor, QUOTA_MAX);
  const raised = { limit: times(row.limit), window_seconds: row.window_seconds };
  // Without it the bucket would shrink to the quota of one window.
  if (hasBurst(row.algorithm)) raised.burst_capacity = times(row.burst_capacity);
  const end = new Date(Date.now() + seconds * 1_000);
  ask({
    title: `${factor}× ${row.rule} for ${duration(seconds)}?`, action: 'Override',
    text: element('div', {},
      element('p', {}, element('b', { class: 'identifier' }, identity.identifier), ` gets ${limit(raised)} instead of ${limit(row)} until ${time(end)}. Current usage is kept.`),
      alsoChanged(others)),
    perform: () => override(identity, { ...raised, rule: row.rule, expires_in_seconds: seconds, reason: `${factor}× for ${duration(seconds)}, from the dashboard` }),
    done: afterwards(`The override for ${identity.identifier} is in force.`, again),
  });
}

function field(label, attributes, ...more) {
  const id = `dialog-${attributes.name}`;
  return element('div', { class: 'field' }, element('label', { for: id }, label), element('input', { id, autocomplete: 'off', ...attributes }), ...more);
}

function custom(identity, row, others, again) {
  const number = (text) => (text === '' ? undefined : Number.isFinite(Number(text)) ? Number(text) : text);
  const fields = element('div', { class: 'columns' },
    field(`Requests per ${duration(row.window_seconds)}`, { name: 'limit', inputmode: 'numeric', value: row.limit }),
    hasBurst(row.algorithm) ? field('Burst', { name: 'burst_capacity', inputmode: 'numeric', value: row.burst_capacity }) : null,
    field('Duration in minutes', { name: 'expires_in_seconds', inputmode: 'numeric', value: 60 }),
    field('Reason', { name: 'reason', placeholder: 'for the audit trail' }));
  ask({
    title: `Override ${row.rule} for ${identity.identifier}`, text: element('div', {}, fields, alsoChanged(others)), action: 'Override',
    perform: ({ elements }) => {
      const minutes = number(elements.expires_in_seconds.value.trim());
      return override(identity, {
        rule: row.rule, limit: number(elements.limit.value.trim()), window_seconds: row.window_seconds,
        burst_capacity: number(elements.burst_capacity?.value.trim() ?? ''),
        expires_in_seconds: typeof minutes === 'number' ? Math.round(minutes * 60) : minutes,
        reason: elements.reason.value.trim() || undefined,
      });
    },
    done: afterwards(`The override for ${identity.identifier} is in force.`, again),
  });
}

async function setTier(session, { identifier }, tier, again) {
  const tiers = [...new Set((await session.rules).map((rule) => rule.tier).filter(Boolean))].sort();
  const known = element('datalist', { id: 'tiers' }, tiers.map((name) => element('option', { value: name })));
  const hint = tiers.length ? `Tiers with rules: ${tiers.join(', ')}. ` : 'No rule is limited to a tier. ';
  let warnings = [];
  ask({
    title: `Set the tier of ${identifier}`, action: 'Set tier',
    text: element('div', { class: 'form' },
      field('Tier', { name: 'tier', value: tier ?? '', list: 'tiers', spellcheck: 'false' }, known),
      element('p', { class: 'hint' }, hint, 'Leave the field empty to remove the tier.')),
    perform: async ({ elements }) => {
      const body = { tier: elements.tier.value.trim() || null };
      ({ warnings = [] } = await call('PUT', path(['users', identifier, 'tier']), { body }));
    },
    done: () => afterwards([`The tier of ${identifier} is set.`, ...warnings].join(' '), again)(),
  });
}

/** An endpoint that a pattern matches. */
function example(pattern) {
  if (pattern === '*') return '/';
  return pattern.replace(/\/?\{\*[^}]*\}$/, '').replace(/\{[^}]*\}/g, 'x') || '/';
}

function reset({ dimension, identifier }, row, again) {
  const text = element('div', {},
    element('p', {}, 'Resets all counters of this key for one endpoint. Usage starts at zero.'),
    field('Endpoint', { name: 'endpoint', value: example(row.endpoint_pattern), spellcheck: 'false' }));
  ask({
    title: `Reset the counters of ${identifier}?`, text, action: 'Reset', danger: true,
    perform: ({ elements }) => {
      const body = { dimension, identifier, endpoint: elements.endpoint.value.trim() };
      if (row.method) [body.method] = row.method.split(',');
      return call('POST', path(['rate-limit', 'reset']), { body });
    },
    done: afterwards(`The counters of ${identifier} are reset.`, again),
  });
}

function overridesCard(session, identity, overrides, limits, again) {
  // An override without a window keeps that of its rule.
  const window = (row) => row.window_seconds ?? limits.find(({ rule }) => rule === row.rule)?.window_seconds;
  const text = (row) => (window(row) ? limit({ ...row, window_seconds: window(row) }) : `${count(row.limit)} per window`);
  const remove = (row) => ask({
    title: `End the override of ${row.rule}?`, action: 'End override', danger: true,
    text: element('p', {}, 'The previous limit applies again immediately.'),
    perform: () => call('DELETE', path([...base(identity), 'override', row.id])),
    done: afterwards(`The override of ${row.rule} has ended.`, again),
  });
  return element('section', { class: 'card', 'aria-label': 'Overrides' },
    element('div', { class: 'card-head' }, element('h2', {}, 'Active overrides')),
    table({
      caption: 'Active overrides', rows: overrides, empty: 'None.',
      columns: [
        { title: 'Rule', cell: (row) => element('b', { class: 'identifier' }, row.rule) },
        { title: 'Limit', cell: text },
        { title: 'Expires', cell: (row) => [`in ${until(new Date(row.expires_at))}`, element('div', { class: 'sub' }, time(row.expires_at))] },
        { title: 'Reason', kind: 'wide', cell: (row) => row.reason ?? '–' },
        { title: 'Actions', kind: 'actions', cell: (row) => onlyFor(session, element('button', { type: 'button', 'aria-label': `End the override of ${row.rule}`, onclick: () => remove(row) }, 'End')) },
      ],
    }));
}
