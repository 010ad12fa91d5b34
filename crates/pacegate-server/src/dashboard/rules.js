// All rules: list, create, change, enforce and delete.

import { call, path } from './api.js';
import { editRule } from './rule_form.js';
import { ask, badge, element, failed, narrow, notice, onlyFor, replace, table, template } from './ui.js';
import { algorithm, audience, count, limit, methods, span } from './words.js';

const PAGE = 100;
/** Rules that a filter searches at most. Beyond that, use the API. */
const SEARCHED_MAX = 10_000;
const shownAtOnce = () => (narrow() ? 6 : 100);

export function show(content, session) {
  content.replaceChildren(template('rules-page'));
  const list = new RuleList(content, session);
  content.querySelector('#rule-filter').addEventListener('input', (event) => list.filter(event.target.value));
  content.querySelector('#more-rules').addEventListener('click', () => list.more());
  onlyFor(session, content.querySelector('#new-rule')).addEventListener('click', () => {
    const create = (rule) => call('POST', path(['rules']), { body: rule });
    editRule(null, create, (rule) => list.changed(`Rule ${rule.name} is created${rule.mode === 'shadow' ? ' in shadow mode' : ' and enforced'}.`));
  });
  list.load();
}

class RuleList {
  #content;
  #session;
  #rules = [];
  #cursor = null;
  #words = '';
  #shown = shownAtOnce();
  /** Pages of an earlier load are discarded. */
  #turn = 0;

  constructor(content, session) {
    this.#content = content;
    this.#session = session;
  }

  async load() {
    this.#turn += 1;
    await this.#attempt(async () => {
      const { rules, next_cursor: cursor } = await call('GET', path(['rules'], { limit: PAGE }));
      [this.#rules, this.#cursor] = [rules, cursor];
    });
    if (this.#words) await this.#loadAll();
  }

  changed(text) {
    notice(text);
    return this.load();
  }

  async more() {
    this.#shown += shownAtOnce();
    if (this.#cursor && this.#found().length < this.#shown) await this.#attempt(() => this.#next(PAGE));
    else this.#render();
  }

  async filter(text) {
    this.#words = text.trim().toLowerCase();
    this.#shown = shownAtOnce();
    this.#render();
    if (this.#words) await this.#loadAll();
  }

  /** A filter searches all rules, not only those on the page. */
  async #loadAll() {
    const turn = this.#turn;
    while (this.#cursor && this.#words && turn === this.#turn && this.#rules.length < SEARCHED_MAX) {
      const before = this.#cursor;
      await this.#attempt(() => this.#next(1_000));
      if (this.#cursor === before) return;
    }
  }

  async #next(size) {
    const [cursor, turn] = [this.#cursor, this.#turn];
    const page = await call('GET', path(['rules'], { limit: size, cursor }));
    if (turn !== this.#turn || cursor !== this.#cursor) return;
    this.#rules.push(...page.rules);
    this.#cursor = page.next_cursor;
  }

  async #attempt(work) {
    try {
      await work();
      this.#render();
    } catch (error) {
      this.#content.querySelector('#rule-table').replaceChildren(failed(error));
    }
  }

  #found() {
    if (!this.#words) return this.#rules;
    const text = (rule) => [rule.name, rule.endpoint_pattern, rule.method, rule.methods, rule.unit, rule.dimension, rule.identifier, rule.tier, rule.algorithm, rule.mode, rule.source].join(' ').toLowerCase();
    return this.#rules.filter((rule) => this.#words.split(/\s+/).every((word) => text(rule).includes(word)));
  }

  #render() {
    const found = this.#found();
    const all = `${count(this.#rules.length)}${this.#cursor ? '+' : ''}`;
    const status = this.#words ? `${count(found.length)} of ${all} rules match` : `${all} rule${this.#rules.length === 1 && !this.#cursor ? '' : 's'}`;
    this.#content.querySelector('#rule-count').textContent = status;
    this.#content.querySelector('#more-rules').hidden = found.length <= this.#shown && (!this.#cursor || Boolean(this.#words));
    replace(this.#content.querySelector('#rule-table'), table({
      caption: 'Rules', rows: found.slice(0, this.#shown), all: true,
      empty: this.#words ? 'No rule matches.' : 'There are no rules yet. A new rule starts in shadow mode, where it blocks no request.',
      columns: [
        { title: 'Rule', kind: 'wide', cell: (rule) => [element('b', { class: 'identifier' }, rule.name), element('div', { class: 'sub' }, audience(rule))] },
        { title: 'Endpoint', kind: 'wide', cell: (rule) => element('span', { class: 'identifier code' }, methods(rule), rule.endpoint_pattern) },
        { title: 'Limit', cell: (rule) => [limit(rule), element('div', { class: 'sub' }, algorithm(rule.algorithm))] },
        { title: 'Mode', cell: (rule) => mode(rule.mode) },
        { title: 'Actions', kind: 'actions', cell: (rule) => this.#actions(rule) },
      ],
    }));
  }

  #actions(rule) {
    if (rule.source === 'file') return element('span', { class: 'sub' }, 'set in the configuration file');
    const button = (text, about, action) => onlyFor(this.#session, element('button', { type: 'button', 'aria-label': `${text} ${about}`, onclick: action }, text));
    const other = rule.mode === 'shadow' ? 'enforce' : 'shadow';
    return element('div', { class: 'buttons' },
      button(other === 'enforce' ? 'Enforce' : 'To shadow', rule.name, () => this.#switch(rule, other)),
      button('Edit', rule.name, () => this.#edit(rule)),
      button('Delete', rule.name, () => this.#delete(rule)));
  }

  #edit(rule) {
    editRule(rule, (typed) => this.#replace(rule, typed), (typed) => this.changed(`Rule ${typed.name} is saved.`));
  }

  async #switch(rule, other) {
    const enforce = other === 'enforce';
    const text = element('div', {}, element('p', {}, enforce
      ? `Requests over the limit will be denied: ${limit(rule)}.`
      : `${rule.name} continues to count and no longer denies requests.`));
    if (enforce) text.append(await wouldDeny(rule));
    ask({
      title: enforce ? `Enforce ${rule.name}?` : `Put ${rule.name} into shadow mode?`,
      text, action: enforce ? 'Enforce' : 'To shadow',
      perform: () => this.#replace(rule, { ...rule, mode: other }),
      done: () => this.changed(enforce ? `Rule ${rule.name} is enforced.` : `Rule ${rule.name} is in shadow mode.`),
    });
  }

  #delete(rule) {
    ask({
      title: `Delete ${rule.name}?`, action: 'Delete', danger: true,
      text: element('p', {}, `The limit of ${limit(rule)} for ${audience(rule)} at ${rule.endpoint_pattern} ends immediately. The audit trail keeps the deleted values.`),
      perform: () => this.#guarded(call('DELETE', path(['rules', rule.rule_id]), { version: rule.version })),
      done: () => this.changed(`Rule ${rule.name} is deleted.`),
    });
  }

  async #replace(rule, changed) {
    await this.#guarded(call('PUT', path(['rules', rule.rule_id]), { body: changed, version: rule.version }));
  }

  /** Explains a lost update and loads the current rule. */
  async #guarded(request) {
    try {
      await request;
    } catch (error) {
      if (error.status === 412) {
        error.message = 'This rule was changed in the meantime. Cancel, review the current version and retry.';
        error.field = null;
        this.load();
      }
      throw error;
    }
  }
}

export const mode = (name) => (name === 'shadow' ? badge('shadow', 'warn') : badge('enforced', 'good'));

/** The service lists the rules with the most denials. */
const FIGURES_LISTED = 100;

/** How many requests and keys a rule in shadow mode would have denied so far. */
async function wouldDeny(rule) {
  try {
    const { rules, uptime_seconds: uptime } = await call('GET', path(['live']));
    const own = rules.find((figures) => figures.rule === rule.name && figures.algorithm === rule.algorithm);
    if (!own && rules.length >= FIGURES_LISTED) return element('p', { class: 'hint' }, 'This node has more rules than it lists here. Its metrics have the number of requests that would have been denied.');
    const since = `on this node in the last ${span(uptime)}`;
    if (!own?.shadow_checked) return element('p', { class: 'figure none' }, `The rule was not evaluated in shadow mode ${since}.`);
    const { shadow_checked: checked, shadow_blocked: denied, shadow_keys: keys, shadow_keys_blocked: keysDenied } = own;
    return element('div', { class: denied ? 'figure' : 'figure none' },
      element('p', {}, element('b', {}, `${count(denied)} of ${count(checked)}`), ` request${checked === 1 ? '' : 's'}, `,
        element('b', {}, `about ${count(keysDenied)} of ${count(keys)}`), ` key${keys === 1 ? '' : 's'} would have been denied`),
      element('p', { class: 'hint' }, `${since}, by all rules named ${rule.name}, including earlier versions of the rule.`));
  } catch (error) {
    return failed(error);
  }
}
