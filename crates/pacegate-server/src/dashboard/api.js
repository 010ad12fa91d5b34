// The REST API, asked with the key that was typed in. The key is in this module only and goes with the tab.

let key = null;
let whenEnded = () => {};

/** What the service, or the way to it, has to say against a request. */
export class ApiError extends Error {
  constructor(status, { code, message, details } = {}, retryAfter = null) {
    super(plain(status, message, retryAfter));
    this.status = status;
    this.code = code ?? null;
    this.field = details?.field ?? null;
    this.reason = details?.reason ?? null;
  }
}

function plain(status, message, retryAfter) {
  if (status === 0) return 'The service does not answer.';
  const text = message ? sentence(message) : `The service answered with status ${status}.`;
  return retryAfter ? `${text} Try again in ${retryAfter} ${retryAfter === '1' ? 'second' : 'seconds'}.` : text;
}

function sentence(text) {
  const start = text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}

/** Calls `handler` with a message when the key does not open anything any more. */
export function onEnded(handler) {
  whenEnded = handler;
}

/** Tries a key; resolves to who it belongs to. */
export async function signIn(candidate) {
  // Whatever cannot be a header cannot be a key.
  if (!/^[\x21-\x7e]+$/.test(candidate)) throw new ApiError(401, { message: 'the API key is not valid' });
  const who = await call('GET', '/api/v1/whoami', { candidate });
  key = candidate;
  return who;
}

export function signOut() {
  key = null;
}

/** Ends the session because the service no longer takes the key. */
export function end(message) {
  if (key === null) return;
  signOut();
  whenEnded(sentence(message));
}

/** Asks and waits for the head of the answer. */
export async function open(method, path, { body, version, accept, signal, candidate } = {}) {
  const headers = { 'X-API-Key': candidate ?? key ?? '' };
  if (accept) headers.Accept = accept;
  if (version !== undefined) headers['If-Match'] = `"${version}"`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  try {
    return await fetch(path, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store', credentials: 'omit', redirect: 'error', referrerPolicy: 'no-referrer',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0);
  }
}

/** The error that an answer is. A key that was revoked or has expired ends the session. */
export async function refusal(response, candidate) {
  const body = await response.json().catch(() => ({}));
  const error = new ApiError(response.status, body.error, response.headers.get('Retry-After'));
  if (response.status === 401 && candidate === undefined) end(body.error?.message ?? 'the API key is not valid');
  return error;
}

/** Asks, and resolves to the JSON of the answer. A denied check is an answer and no error. */
export async function call(method, path, options = {}) {
  const response = await open(method, path, options);
  if (response.status === 204) return null;
  if (response.ok) return response.json();
  if (response.status === 429 || response.status === 503) {
    const body = await response.clone().json().catch(() => ({}));
    if (typeof body.allowed === 'boolean') return body;
  }
  throw await refusal(response, options.candidate);
}

/** A path of the API: every part is escaped, `?` starts what is in `query`; empty values are left out. */
export function path(parts, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== '' && value != null));
  const text = `/api/v1/${parts.map(encodeURIComponent).join('/')}`;
  return search.size ? `${text}?${search}` : text;
}
