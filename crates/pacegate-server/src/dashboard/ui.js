// Elements, tables, dialogs and notices. Text goes in as text: nothing here can make markup out of what an API says.

/** Makes an element. Attributes that start with `on` are listeners; those that are null or false are left out. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** What is in the template of that name. */
export const template = (id) => document.getElementById(id).content.cloneNode(true);

export const badge = (text, kind = '') => element('span', { class: `badge ${kind}` }, text);

/** A bar of `[share, kind]`, shares from 0 to 1. The numbers stand beside it, so that it says nothing on its own. */
export function bar(...parts) {
  return element('div', { class: 'bar', 'aria-hidden': 'true' }, parts.map(([share, kind = '']) => {
    const part = element('span', { class: kind });
    part.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
    return part;
  }));
}

/**
 * A table. Columns are `{title, cell(item), number?}`. On narrow screens a row becomes a block; the roles keep it a table for those who listen.
 */
export function table({ caption, columns, rows, empty }) {
  if (!rows.length) return element('p', { class: 'empty' }, empty);
  const head = columns.map(({ title, number }) => element('th', { role: 'columnheader', scope: 'col', class: number && 'number' }, title));
  const cells = (item) => columns.map(({ title, cell, number, kind }) =>
    element('td', { role: 'cell', 'data-title': title, class: number ? 'number' : kind }, cell(item)));
  return element('table', { role: 'table' },
    element('caption', { class: 'unseen' }, caption),
    element('thead', { role: 'rowgroup' }, element('tr', { role: 'row' }, head)),
    element('tbody', { role: 'rowgroup' }, rows.map((item) => element('tr', { role: 'row' }, cells(item)))));
}

/** Puts `content` in the place of what `place` shows. Whoever was there with the keyboard stays at what is called the same, or starts at the top. */
export function replace(place, ...content) {
  const at = place.contains(document.activeElement) ? document.activeElement : null;
  place.replaceChildren(...content);
  if (!at) return;
  const same = [...place.querySelectorAll('[aria-label]')].find((found) => found.getAttribute('aria-label') === at.getAttribute('aria-label'));
  (same ?? document.querySelector('#content h1'))?.focus({ preventScroll: true });
}

/** The same, for what changes by itself: it holds still while somebody is at it with the keyboard or the pointer. */
export function refresh(place, content) {
  if (!place.matches(':hover, :focus-within') || !place.firstChild) place.replaceChildren(content);
}

const NOTICE_STAYS_MS = 6_000;

/** Says that something was done. */
export function notice(text) {
  const shown = element('p', {}, text);
  document.getElementById('notices').append(shown);
  setTimeout(() => shown.remove(), NOTICE_STAYS_MS);
}

export const failed = (error) => element('p', { class: 'alert', role: 'alert' }, error.message);

/** Opens a dialog around `content`. The browser keeps the focus inside, and gives it back when the dialog closes. */
export function dialog(content, label) {
  const opened = element('dialog', { 'aria-label': label }, content);
  opened.addEventListener('close', () => opened.remove());
  document.body.append(opened);
  for (const button of opened.querySelectorAll('[data-close]')) button.addEventListener('click', () => opened.close());
  opened.showModal();
  return opened;
}

/** Asks before something is done, and goes on with `done` when it was. The dialog stays open with the reason when it could not be. */
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

/** Runs `perform` when the form is sent, one at a time, and shows what is wrong at its field. */
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

/** Shows an error at the field that it names, or else above all fields. */
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

/** Switches a button off for those who may not use it, and says why. */
export function onlyFor(session, button) {
  if (session.role !== 'admin') {
    button.disabled = true;
    button.title = `Your key has the role ${session.role}; this needs the role admin.`;
  }
  return button;
}
