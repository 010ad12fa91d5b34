// Elements, tables, dialogs and notices. Text is inserted as text and never parsed as markup.

/** Creates an element. Attributes named `on…` are listeners; null and false are omitted. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A copy of the template with this id. */
export const template = (id) => document.getElementById(id).content.cloneNode(true);

export const badge = (text, kind = '') => element('span', { class: `badge ${kind}` }, text);

/** A bar of `[share, kind]`, shares from 0 to 1. The numbers are beside it as text. */
export function bar(...parts) {
  return element('div', { class: 'bar', 'aria-hidden': 'true' }, parts.map(([share, kind = '']) => {
    const part = element('span', { class: kind });
    part.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
    return part;
  }));
}

/** Whether the screen is as narrow as a phone's. */
export const narrow = () => matchMedia('(max-width: 640px)').matches;
/** Rows of a table that a narrow screen shows at first. */
const NARROW_ROWS = 6;

/**
 * A table. Columns are `{title, cell(item), number?, kind?}`. On narrow screens a row becomes a
 * block, and long tables are cut unless `all` is set. The roles keep it a table for screen readers.
 */
export function table({ caption, columns, rows, empty, all = false }) {
  if (!rows.length) return element('p', { class: 'empty' }, empty);
  if (narrow() && !all && rows.length > NARROW_ROWS) {
    const whole = () => part.replaceWith(table({ caption, columns, rows, empty, all: true }));
    const part = element('div', {}, table({ caption, columns, rows: rows.slice(0, NARROW_ROWS), empty, all: true }),
      element('p', { class: 'more' }, element('button', { type: 'button', onclick: whole }, `Show all ${rows.length}`)));
    return part;
  }
  const head = columns.map(({ title, number }) => element('th', { role: 'columnheader', scope: 'col', class: number && 'number' }, title));
  const cells = (item) => columns.map(({ title, cell, number, kind }) =>
    element('td', { role: 'cell', 'data-title': title, class: number ? 'number' : kind }, folded(kind, cell(item))));
  return element('table', { role: 'table' },
    element('caption', { class: 'unseen' }, caption),
    element('thead', { role: 'rowgroup' }, element('tr', { role: 'row' }, head)),
    element('tbody', { role: 'rowgroup' }, rows.map((item) => element('tr', { role: 'row' }, cells(item)))));
}

/** The buttons of a row take much space on a narrow screen, so that they open on demand there. */
function folded(kind, content) {
  if (kind !== 'actions' || !narrow() || !content || content.classList.contains('sub')) return content;
  return element('details', {}, element('summary', {}, 'Actions'), content);
}

/**
 * Makes sections collapsible on narrow screens, one open at a time. On wide screens all are open.
 * Returns a function that stops following the width.
 */
export function folds(sections) {
  const width = matchMedia('(max-width: 960px)');
  const apply = () => sections.forEach((section, index) => {
    if (width.matches) section.name = 'fold';
    else section.removeAttribute('name');
    section.open = !width.matches || index === 0;
  });
  apply();
  width.addEventListener('change', apply);
  return () => width.removeEventListener('change', apply);
}

/**
 * Replaces what `place` shows. Keyboard focus stays on the element with the same label, or moves to
 * the heading.
 */
export function replace(place, ...content) {
  const at = place.contains(document.activeElement) ? document.activeElement : null;
  place.replaceChildren(...content);
  if (!at) return;
  const same = [...place.querySelectorAll('[aria-label]')].find((found) => found.getAttribute('aria-label') === at.getAttribute('aria-label'));
  (same ?? document.querySelector('#content h1'))?.focus({ preventScroll: true });
}

/** Replaces content that changes by itself, except while it has the focus or the pointer. */
export function refresh(place, content) {
  if (!place.matches(':hover, :focus-within') || !place.firstChild) place.replaceChildren(content);
}

const NOTICE_STAYS_MS = 6_000;

/** Shows a message for a few seconds. */
export function notice(text) {
  const shown = element('p', {}, text);
  document.getElementById('notices').append(shown);
  setTimeout(() => shown.remove(), NOTICE_STAYS_MS);
}

export const failed = (error) => element('p', { class: 'alert', role: 'alert' }, error.message);

/** Opens a dialog around `content`. The browser keeps the focus inside until it closes. */
export function dialog(content, label) {
  const opened = element('dialog', { 'aria-label': label }, content);
  opened.addEventListener('close', () => opened.remove());
  document.body.append(opened);
  for (const button of opened.querySelectorAll('[data-close]')) button.addEventListener('click', () => opened.close());
  opened.showModal();
  return opened;
}

/** Confirms an action in a dialog and calls `done` after success. The dialog shows errors. */
export function ask({ title, text, action, danger = false, perform, done }) {
  const problem = element('p', { class: 'form-error alert', role: 'alert', hidden: true });
  const doing = element('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, action);
  const form = element('form', { class: 'form', method: 'dialog' },
    element('h2', {}, title), text, problem,
    element('div', { class: 'buttons end' }, element('button', { type: 'button', 'data-close': true }, 'Cancel'), doing));
  const opened = dialog(form, title);
  submits(form, doing, async () => {
    await perform(form);
    opened.close();
    done();
  });
}

/** Runs `perform` when the form is submitted, one at a time, and shows errors at their fields. */
export function submits(form, button, perform) {
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    clearErrors(form);
    button.disabled = true;
    try {
      await perform();
    } catch (error) {
      showError(form, error);
    } finally {
      button.disabled = false;
    }
  });
}

function clearErrors(form) {
  for (const input of form.querySelectorAll('[aria-invalid]')) input.removeAttribute('aria-invalid');
  for (const message of form.querySelectorAll('.field-error')) message.remove();
  const problem = form.querySelector('.form-error');
  if (problem) problem.hidden = true;
}

/** Shows an error at the field that it names, or above all fields. */
export function showError(form, error) {
  const named = error.field && form.elements.namedItem(error.field);
  const input = named instanceof RadioNodeList ? named[0] : named;
  if (input) {
    const closed = input.closest('details');
    if (closed) closed.open = true;
    const message = element('p', { class: 'field-error', id: `${input.id}-error` }, error.reason ?? error.message);
    input.setAttribute('aria-invalid', 'true');
    input.setAttribute('aria-errormessage', message.id);
    input.closest('.field, fieldset').append(message);
    input.focus();
    return;
  }
  const problem = form.querySelector('.form-error');
  problem.textContent = error.message;
  problem.hidden = false;
}

/** Disables a button for keys that may not use it, and gives the reason as its title. */
export function onlyFor(session, button) {
  if (session.role !== 'admin') {
    button.disabled = true;
    button.title = `Requires an admin key. You are signed in with a ${session.role} key.`;
  }
  return button;
}
