// API keys: listed, created and revoked. A secret is shown once, when its key is created.

import { call, path } from './api.js';
import { ask, badge, dialog, element, failed, notice, onlyFor, replace, submits, table, template } from './ui.js';
import { time } from './words.js';

export function show(content, session) {
  content.replaceChildren(template('keys-page'));
  const form = content.querySelector('#key-form');
  const load = () => list(content, session, load);
  submits(form, onlyFor(session, form.querySelector('[type=submit]')), async () => {
    const { role, name, expires } = form.elements;
    const body = { role: role.value };
    if (name.value.trim()) body.name = name.value.trim();
    if (expires.value) body.expires_in_seconds = Number(expires.value);
    showSecret(await call('POST', path(['keys']), { body }));
    name.value = '';
    load();
  });
  load();
}

function showSecret({ name, secret }) {
  const shown = element('input', { id: 'secret', readonly: true, class: 'code', value: secret });
  shown.addEventListener('focus', () => shown.select());
  dialog(element('form', { class: 'form', method: 'dialog' },
    element('h2', {}, `Key ${name}`),
    element('p', {}, 'Copy the secret now. It is shown only once; the service stores only its hash.'),
    element('div', { class: 'field' }, element('label', { for: 'secret' }, 'Secret'), shown),
    element('div', { class: 'buttons end' }, element('button', { class: 'primary' }, 'Done'))), `Key ${name}`);
  shown.focus();
}

const STATES = { active: 'good', expired: 'warn', revoked: 'bad' };

async function list(content, session, load) {
  const place = content.querySelector('#key-table');
  try {
    const { keys } = await call('GET', path(['keys']));
    replace(place, table({
      caption: 'API keys', rows: keys, empty: 'The catalog has no keys. You are signed in with the configured admin key.',
      columns: [
        { title: 'Key', kind: 'wide', cell: (key) => [element('b', { class: 'identifier' }, key.name), element('div', { class: 'sub code' }, key.key_id)] },
        { title: 'Role', cell: (key) => key.role },
        { title: 'State', cell: (key) => badge(key.state, STATES[key.state]) },
        { title: 'Last used', cell: (key) => (key.last_used_at ? time(key.last_used_at) : 'never') },
        { title: 'Expires', cell: (key) => (key.expires_at ? time(key.expires_at) : 'never') },
        { title: 'Actions', kind: 'actions', cell: (key) => (key.state === 'active' ? revoke(session, key, load) : '') },
      ],
    }));
  } catch (error) {
    place.replaceChildren(failed(error));
  }
}

function revoke(session, key, load) {
  const own = key.key_id === session.keyId;
  return onlyFor(session, element('button', {
    type: 'button', 'aria-label': `Revoke ${key.name}`,
    onclick: () => ask({
      title: `Revoke ${key.name}?`, action: 'Revoke', danger: true,
      text: element('p', {}, own ? 'You are signed in with this key and will be signed out.' : 'Requests with this key are rejected immediately by this node, and within two seconds by the others.'),
      perform: () => call('DELETE', path(['keys', key.key_id])),
      done: () => {
        notice(`Key ${key.name} is revoked.`);
        load();
      },
    }),
  }, 'Revoke'));
}
