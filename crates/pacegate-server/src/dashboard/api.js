// Calls the REST API with the key of the session. The key exists in this module only.

let key = null;
let whenEnded = () => {};

/** An error response, or a failed connection (status 0). */
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
  if (status === 0) return 'The service is not reachable.';
  const text = message ? sentence(message) : `The service returned status ${status}.`;
  return retryAfter ? `${text} Retry in ${retryAfter} ${retryAfter === '1' ? 'second' : 'seconds'}.` : text;
}

function sentence(text) {
  const start = text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}

/** Calls `handler` with a message when the key is no longer valid. */
export function onEnded(handler) {
  whenEnded = handler;
}

/** Signs in with a key. Resolves to its id and role. */
export async function signIn(candidate) {
  // A key must be a valid header value.
  if (!/^[\x21-\x7e]+$/.test(candidate)) throw new ApiError(401, { message: 'the API key is not valid' });
  const who = await call('GET', '/api/v1/whoami', { candidate });
  key = candidate;
  return who;
}

export function signOut() {
  key = null;
}

/** Ends the session because the service rejected the key. */
export function end(message) {
  if (key === null) return;
  signOut();
  whenEnded(sentence(message));
}

/** Sends a request and waits for the head of the response. */
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

/** The error in a response. A key that was revoked or has expired ends the session. */
export async function refusal(response, candidate) {
  const body = await response.json().catch(() => ({}));
  const error = new ApiError(response.status, body.error, response.headers.get('Retry-After'));
  if (response.status === 401 && candidate === undefined) end(body.error?.message ?? 'the API key is not valid');
  return error;
}

/** Sends a request and resolves to the JSON body. A denied check is a decision, not an error. */
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

/** A path of the API with escaped parts. Empty values of `query` are omitted. */
export function path(parts, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== '' && value != null));
  const text = `/api/v1/${parts.map(encodeURIComponent).join('/')}`;
  return search.size ? `${text}?${search}` : text;
}
