// All rules: found, made, changed, switched on and off.

import { call, path } from './api.js';
import { editRule } from './rule_form.js';
import { ask, badge, element, failed, notice, onlyFor, replace, table, template } from './ui.js';
import { algorithm, audience, count, limit, methods } from './words.js';

const PAGE = 100;
/** The service gives out a thousand at a time; who has more finds a rule by its name in the API. */
const SEARCHED_MAX = 10_000;
const SHOWN_AT_ONCE = 100;

export function show(content, session) {
  content.replaceChildren(template('rules-page'));
  const list = new RuleList(content, session);
  content.querySelector('#rule-filter').addEventListener('input', (event) => list.filter(event.target.value));
  content.querySelector('#more-rules').addEventListener('click', () => list.more());
  onlyFor(session, content.querySelector('#new-rule')).addEventListener('click', () => {
    const create = (rule) => call('POST', path(['rules']), { body: rule });
    editRule(null, create, (rule) => list.changed(`Rule ${rule.name} is in force${rule.mode === 'shadow' ? ', in shadow mode' : ''}.`));
  });
  list.load();
}

class RuleList {
  #content;
  #session;
  #rules = [];
  #cursor = null;
  #words = '';
  #shown = SHOWN_AT_ONCE;
  /** A list that was loaded again in between is not added to. */
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
    this.#shown += SHOWN_AT_ONCE;
    if (this.#cursor && this.#found().length < this.#shown) await this.#attempt(() => this.#next(PAGE));
    else this.#render();
  }

  async filter(text) {
    this.#words = text.trim().toLowerCase();
    this.#shown = SHOWN_AT_ONCE;
    this.#render();
    if (this.#words) await this.#loadAll();
  }

  /** A filter looks at all rules, not only at those that are shown. */
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
      caption: 'Rules', rows: found.slice(0, this.#shown),
      empty: this.#words ? 'No rule matches.' : 'There are no rules yet. A new one starts in shadow mode, where it blocks nobody.',
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
    if (rule.source === 'file') return element('span', { class: 'sub' }, 'from the configuration file; change it there');
    const button = (text, about, action) => onlyFor(this.#session, element('button', { type: 'button', 'aria-label': `${text} ${about}`, onclick: action }, text));
    const other = rule.mode === 'shadow' ? 'enforce' : 'shadow';
    return element('div', { class: 'buttons' },
      button(other === 'enforce' ? 'Enforce' : 'To shadow', rule.name, () => this.#switch(rule, other)),
      button('Edit', rule.name, () => this.#edit(rule)),
      button('Delete', rule.name, () => this.#delete(rule)));
  }

  #edit(rule) {
    editRule(rule, (typed) => this.#replace(rule, typed), (typed) => this.changed(`Rule ${typed.name} is changed.`));
  }

  async #switch(rule, other) {
    const enforce = other === 'enforce';
    const text = element('div', {}, element('p', {}, enforce
      ? `From now on ${rule.name} blocks what is over ${limit(rule)}.`
      : `${rule.name} goes on counting, and blocks nobody any more.`));
    if (enforce) text.append(await wouldBlock(rule));
    ask({
      title: enforce ? `Enforce ${rule.name}?` : `Put ${rule.name} into shadow mode?`,
      text, action: enforce ? 'Enforce' : 'To shadow',
      perform: () => this.#replace(rule, { ...rule, mode: other }),
      done: () => this.changed(enforce ? `Rule ${rule.name} is enforced.` : `Rule ${rule.name} only watches now.`),
    });
  }

  #delete(rule) {
    ask({
      title: `Delete ${rule.name}?`, action: 'Delete', danger: true,
      text: element('p', {}, `${limit(rule)} for ${audience(rule)} at ${rule.endpoint_pattern} ends at once. The audit trail keeps what it was.`),
      perform: () => this.#guarded(call('DELETE', path(['rules', rule.rule_id]), { version: rule.version })),
      done: () => this.changed(`Rule ${rule.name} is deleted.`),
    });
  }

  async #replace(rule, changed) {
    await this.#guarded(call('PUT', path(['rules', rule.rule_id]), { body: changed, version: rule.version }));
  }

  /** Says plainly that somebody was faster, and shows what they made of it. */
  async #guarded(request) {
    try {
      await request;
    } catch (error) {
      if (error.status === 412) {
        error.message = 'Somebody changed this rule meanwhile. Cancel, look at it as it is now, and try again.';
        error.field = null;
        this.load();
      }
      throw error;
    }
  }
}

export const mode = (name) => (name === 'shadow' ? badge('shadow', 'warn') : badge('enforced', 'good'));

/** The service lists those with the most denials; what is beyond them is not known here. */
const FIGURES_LISTED = 100;

/** How many requests a rule in shadow mode would have blocked so far. */
async function wouldBlock(rule) {
  try {
    const { rules } = await call('GET', path(['live']));
    const own = rules.find((figures) => figures.rule === rule.name && figures.algorithm === rule.algorithm);
    if (!own && rules.length >= FIGURES_LISTED) return element('p', { class: 'hint' }, 'How many it would have blocked is in the metrics of this node.');
    const blocked = own?.shadow_blocked ?? 0;
    return element('p', { class: blocked ? 'figure' : 'figure none' }, element('b', {}, count(blocked)),
      ` request${blocked === 1 ? '' : 's'} would have been blocked on this node since it started, by all rules of this name as they were then.`);
  } catch (error) {
    return failed(error);
  }
}
