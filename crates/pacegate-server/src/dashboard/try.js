// Explains the decision on a check, or makes it.

import { call, path } from './api.js';
import { mode } from './rules.js';
import { badge, element, onlyFor, showError, submits, table, template } from './ui.js';
import { algorithm, audience, count, dimensionName, limit, milliseconds, reason, source, span } from './words.js';

export function show(content, session) {
  content.replaceChildren(template('try-page'));
  const form = content.querySelector('#try-form');
  submits(form, form.querySelector('[type=submit]'), async () => {
    const { decision, tier, rules, rules_total: total } = await call('POST', path(['explain']), { body: read(form.elements) });
    showVerdict(content, decision, tier, false);
    content.querySelector('#explanation').replaceChildren(explanation(rules, total));
  });
  const really = onlyFor(session, content.querySelector('#really-check'));
  really.addEventListener('click', async () => {
    really.disabled = true;
    try {
      const decision = await call('POST', path(['rate-limit', 'check']), { body: read(form.elements) });
      showVerdict(content, decision, undefined, true);
      content.querySelector('#explanation').replaceChildren();
    } catch (error) {
      showError(form, error);
    } finally {
      really.disabled = false;
    }
  });
}

/** The body of a check. The service validates it. */
function read(fields) {
  const text = (name) => fields[name].value.trim();
  const body = { endpoint: text('endpoint') };
  if (text('method')) body.method = text('method');
  if (text('cost')) body.cost = Number.isFinite(Number(text('cost'))) ? Number(text('cost')) : text('cost');
  const others = text('keys').split('\n').filter((line) => line.trim());
  if (!others.length) {
    body.user_id = text('user_id');
    return body;
  }
  body.keys = text('user_id') ? { user: text('user_id') } : {};
  for (const line of others) {
    const [dimension, ...rest] = line.split('=');
    body.keys[dimension.trim()] = rest.join('=').trim();
  }
  return body;
}

function showVerdict(content, decision, tier, charged) {
  const { allowed } = decision;
  const facts = [
    ['Deciding rule', decision.rule ?? 'none'],
    ['Remaining', decision.remaining == null ? '–' : `${count(decision.remaining)} of ${count(decision.limit)}`],
    ['Full reset in', decision.reset_at ? span(decision.reset_at - Date.now() / 1_000) : '–'],
  ];
  if (decision.retry_after_ms) facts.push(['Retry after', decision.retry_after_ms < 1_000 ? `${milliseconds(decision.retry_after_ms)} ms` : span(decision.retry_after_ms / 1_000)]);
  if (decision.reason) facts.push(['Reason', reason(decision.reason)]);
  if (decision.degraded) facts.push(['Degraded', 'store unavailable; decided without it']);
  if (tier !== undefined) facts.push(['Tier', tier ?? 'none']);
  const words = charged ? (allowed ? 'Allowed and charged' : 'Denied, nothing charged') : (allowed ? 'Would be allowed' : 'Would be denied');
  // Screen readers announce only this line.
  const line = content.querySelector('#verdict-words');
  line.className = `verdict ${allowed ? 'good' : 'bad'}`;
  line.replaceChildren(element('span', { 'aria-hidden': 'true' }, allowed ? '✓' : '✕'), words);
  content.querySelector('#verdict-details').replaceChildren(
    element('dl', { class: 'facts' }, facts.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', { class: 'identifier' }, value)))),
    table({
      caption: 'Decision of each limit', rows: decision.limits, empty: 'No limit applies.',
      columns: [
        { title: 'Limit', kind: 'wide', cell: (row) => [element('b', { class: 'identifier' }, row.rule), element('div', { class: 'sub' }, `${limit({ limit: row.quota, window_seconds: row.window_seconds, burst_capacity: row.limit, unit: row.unit })} by ${row.dimension === 'user' ? 'user' : dimensionName(row.dimension)}`)] },
        { title: 'Decision', cell: (row) => [row.allowed ? badge('allowed', 'good') : badge(row.shadow ? 'would deny' : 'denied', row.shadow ? 'warn' : 'bad'), ' ', row.shadow ? mode('shadow') : null] },
        { title: 'Remaining', number: true, cell: (row) => count(row.remaining) },
      ],
    }),
  );
}

const APPLIES = 'applies: ';

function explain({ verdict, explanation: text }) {
  return verdict === 'applies' && text.startsWith(APPLIES) ? source(text.slice(APPLIES.length)) : text;
}

function explanation(rules, total) {
  const applies = rules.filter((rule) => rule.verdict === 'applies').length;
  const note = `${count(applies)} of ${count(total)} rules apply${rules.length < total ? `; the ${count(rules.length)} closest are listed` : ''}`;
  return element('section', { class: 'card', 'aria-label': 'Rules' },
    element('div', { class: 'card-head' }, element('h2', {}, 'Rules'), element('p', { class: 'hint' }, note)),
    table({
      caption: 'Rules and whether they apply', rows: rules, empty: 'There are no rules.',
      columns: [
        { title: 'Rule', kind: 'wide', cell: (rule) => [element('b', { class: 'identifier' }, rule.rule), element('div', { class: 'sub' }, audience(rule))] },
        { title: 'Applies', kind: 'wide', cell: (rule) => [rule.verdict === 'applies' ? badge('yes', 'good') : badge('no'), ' ', element('span', { class: 'identifier' }, explain(rule))] },
        { title: 'Endpoint', kind: 'wide', cell: (rule) => element('span', { class: 'identifier code' }, rule.method ? `${rule.method} ` : '', rule.endpoint_pattern) },
        { title: 'Limit', cell: (rule) => [limit(rule), element('div', { class: 'sub' }, rule.own ? `instead of ${limit(rule.own)}` : algorithm(rule.algorithm))] },
        { title: 'Mode', cell: (rule) => mode(rule.mode) },
      ],
    }));
}
