// Sign-in, navigation and the colour theme.

import * as api from './api.js';
import * as audit from './audit.js';
import * as keys from './keys.js';
import * as live from './live.js';
import * as log from './log.js';
import * as lookup from './lookup.js';
import * as rules from './rules.js';
import * as attempt from './try.js';
import { Stream } from './stream.js';

/** The function and the title of each page, by its name in the address. */
const PAGES = {
  live: [live.show, 'Live'],
  rules: [rules.show, 'Rules'],
  lookup: [lookup.show, 'Lookup'],
  try: [attempt.show, 'Try a check'],
  log: [log.show, 'Decision log'],
  audit: [audit.show, 'Audit trail'],
  keys: [keys.show, 'API keys'],
};

const find = (id) => document.getElementById(id);
const content = find('content');
/** `{role, keyId, stream}` while signed in. */
let session = null;
let leave = null;

find('sign-in-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const input = find('sign-in-key');
  const button = event.target.querySelector('button');
  button.disabled = true;
  try {
    begin(await api.signIn(input.value.trim()));
  } catch (error) {
    say(error.message);
    input.select();
  } finally {
    button.disabled = false;
  }
});

function begin({ key_id: keyId, role, version }) {
  find('sign-in-key').value = '';
  say('');
  session = { keyId, role, stream: new Stream().start() };
  const name = keyId === 'configured' ? `configured ${role} key` : `${role} key ${keyId}`;
  find('who').textContent = `${name}${role === 'admin' ? '' : ' (read-only)'} · Pacegate ${version}`;
  find('sign-in').hidden = true;
  find('app').hidden = false;
  session.stream.listen(showConnection);
  navigate();
}

function finish(message) {
  for (const opened of document.querySelectorAll('dialog')) opened.close();
  leave?.();
  leave = null;
  session?.stream.stop();
  session = null;
  content.replaceChildren();
  find('app').hidden = true;
  find('sign-in').hidden = false;
  document.title = 'Pacegate';
  say(message);
  find('sign-in-key').focus();
}

function say(message) {
  find('sign-in-message').textContent = message;
  find('sign-in-message').hidden = !message;
}

api.onEnded((message) => finish(`${message} Sign in with another key.`));
find('sign-out').addEventListener('click', () => {
  api.signOut();
  finish('');
});

const STATES = { connecting: 'Connecting', live: 'Live', lost: 'Connection lost, retrying' };
let shown = null;

/** Updates the text only when it changes, because screen readers announce it. */
function showConnection({ state, refused }) {
  const text = refused ? `${refused} Retrying.` : STATES[state];
  if (text === shown) return;
  shown = text;
  find('connection').dataset.state = state;
  find('connection-text').textContent = text;
}

function navigate() {
  if (!session) return;
  const [, name = '', ...rest] = location.hash.split('/');
  const page = Object.hasOwn(PAGES, name) ? name : 'live';
  const [show, title] = PAGES[page];
  leave?.();
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#/${page}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = `${title} · Pacegate`;
  leave = show(content, session, rest.map(decode)) ?? null;
  content.querySelector('h1').focus({ preventScroll: true });
  scrollTo(0, 0);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener('hashchange', navigate);
find('skip').addEventListener('click', (event) => {
  event.preventDefault();
  content.focus();
});

const THEMES = ['auto', 'light', 'dark'];

/** Stores the theme. Where storage is not allowed, the choice applies to this tab. */
function remembered(value) {
  try {
    if (value === undefined) return localStorage.getItem('pacegate-theme');
    localStorage.setItem('pacegate-theme', value);
  } catch { /* no storage */ }
  return null;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  find('theme').textContent = { auto: 'Theme: auto', light: 'Theme: light', dark: 'Theme: dark' }[theme];
}

setTheme(THEMES.includes(remembered()) ? remembered() : 'auto');
find('theme').addEventListener('click', () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  setTheme(next);
  remembered(next);
});
