// The form that creates or changes a rule.

import { dialog, submits, template } from './ui.js';
import { ALGORITHMS, hasBurst } from './words.js';

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'];

/** A new rule starts in shadow mode, so that its effect is known before it is enforced. */
const NEW_RULE = {
  name: '', dimension: 'user', endpoint_pattern: '*', algorithm: 'token_bucket', limit: 100, window_seconds: 60, mode: 'shadow', counter: 'pattern',
};

/** Opens the form for `rule`, or for a new rule. Calls `done` after `save` succeeded. */
export function editRule(rule, save, done) {
  const content = template('rule-form-template');
  const form = content.querySelector('form');
  const fields = form.elements;
  const title = rule ? `Edit ${rule.name}` : 'New rule';
  const submit = form.querySelector('[type=submit]');
  form.querySelector('h2').textContent = title;
  submit.textContent = rule ? 'Save' : 'Create rule';
  for (const method of METHODS) fields.method.append(new Option(method));
  for (const [name, [words]] of Object.entries(ALGORITHMS)) fields.algorithm.append(new Option(words, name));
  fill(fields, { ...NEW_RULE, ...rule });
  fields.algorithm.addEventListener('change', () => explain(form));
  explain(form);
  const opened = dialog(content, title);
  submits(form, submit, async () => {
    const typed = { ...rule, ...read(fields) };
    await save(typed);
    opened.close();
    done(typed);
  });
}

function explain(form) {
  const name = form.elements.algorithm.value;
  form.querySelector('#rule-algorithm-hint').textContent = ALGORITHMS[name][1];
  form.querySelector('#rule-burst-field').hidden = !hasBurst(name);
}

function fill(fields, rule) {
  for (const name of ['name', 'dimension', 'endpoint_pattern', 'tier', 'identifier', 'limit', 'algorithm', 'mode', 'counter', 'store', 'on_store_error', 'unit', 'cost']) {
    fields[name].value = rule[name] ?? '';
  }
  if (rule.method && !METHODS.includes(rule.method)) fields.method.append(new Option(rule.method));
  fields.method.value = rule.method ?? '';
  fields.overdraw.checked = rule.overdraw ?? false;
  fields.unlimited.checked = rule.unlimited ?? false;
  const unit = [86_400, 3_600, 60].find((size) => rule.window_seconds % size === 0) ?? 1;
  fields.window_unit.value = unit;
  fields.window_seconds.value = rule.window_seconds / unit;
  fields.burst_capacity.value = rule.burst_capacity && rule.burst_capacity !== rule.limit ? rule.burst_capacity : '';
}

/** The rule as entered. The service validates it. */
function read(fields) {
  const text = (name) => fields[name].value.trim() || null;
  const window = number(text('window_seconds'));
  const rule = {
    name: text('name'), dimension: text('dimension'), endpoint_pattern: text('endpoint_pattern'), method: text('method'),
    tier: text('tier'), identifier: text('identifier'), algorithm: text('algorithm'), mode: text('mode'), counter: text('counter'),
    store: text('store'), on_store_error: text('on_store_error'), limit: number(text('limit')),
    window_seconds: typeof window === 'number' ? window * Number(fields.window_unit.value) : window,
    burst_capacity: hasBurst(text('algorithm')) ? number(text('burst_capacity')) : null,
    unit: text('unit'), cost: number(text('cost')), overdraw: fields.overdraw.checked, unlimited: fields.unlimited.checked,
  };
  return rule;
}

/** A number, or the text itself, which the service rejects with a message. */
function number(text) {
  return text !== null && Number.isFinite(Number(text)) ? Number(text) : text;
}
