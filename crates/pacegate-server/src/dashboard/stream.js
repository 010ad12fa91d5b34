// The figures of every second, as server-sent events. EventSource cannot send an API key, so this
// module reads the stream itself.

import * as api from './api.js';

const RETRY_FIRST_MS = 500;
const RETRY_LAST_MS = 8_000;
/** The service sends an event every second. A connection that is silent for longer is dead. */
const SILENCE_MAX_MS = 10_000;
/** Seconds that the chart shows, as many as the service keeps. */
export const SECONDS_KEPT = 15 * 60;

/** Follows the service until it is stopped. Reconnects after restarts and lost connections. */
export class Stream {
  /** `{at, figures}` of each second, oldest first; `figures` is null without a connection. */
  samples = [];
  state = 'connecting';
  /** The error that the service rejected the stream with. */
  refused = null;
  latest = null;
  #listeners = new Set();
  #stopping = new AbortController();

  start() {
    this.#follow();
    return this;
  }

  stop() {
    this.#stopping.abort();
    this.#listeners.clear();
  }

  /** Calls `listener` after every change. Returns a function that stops this. */
  listen(listener) {
    this.#listeners.add(listener);
    listener(this);
    return () => this.#listeners.delete(listener);
  }

  /** The newest figures; null while the connection is lost. */
  get last() {
    return this.latest;
  }

  async #follow() {
    let wait = RETRY_FIRST_MS;
    while (!this.#stopping.signal.aborted) {
      this.refused = null;
      try {
        await this.#read(() => { wait = RETRY_FIRST_MS; });
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        if (error.status === 403) return api.end(error.message);
        this.refused = error.status ? error.message : null;
      }
      if (this.#stopping.signal.aborted) return;
      this.#change('lost', null);
      // Jitter: not all tabs reconnect at once.
      await pause(wait * (0.75 + Math.random() / 2), this.#stopping.signal);
      wait = Math.min(wait * 2, RETRY_LAST_MS);
    }
  }

  async #read(arrived) {
    const silence = new AbortController();
    let alarm = setTimeout(() => silence.abort(), SILENCE_MAX_MS);
    const signal = AbortSignal.any([this.#stopping.signal, silence.signal]);
    try {
      const response = await api.open('GET', '/api/v1/live', { accept: 'text/event-stream', signal });
      if (!response.ok) throw await api.refusal(response);
      let first = true;
      // Without the history the chart fills up second by second.
      await this.#fill().catch(() => {});
      for await (const { name, data } of events(response.body)) {
        clearTimeout(alarm);
        alarm = setTimeout(() => silence.abort(), SILENCE_MAX_MS);
        if (name === 'error') return api.end(data);
        if (name !== 'figures') continue;
        arrived();
        const figures = JSON.parse(data);
        // A rate is the difference between two events; the first one has none.
        if (first) figures.allowed_per_second = figures.blocked_per_second = figures.degraded_per_second = null;
        first = false;
        this.#change('live', figures);
      }
    } finally {
      clearTimeout(alarm);
    }
  }

  /** Adds the seconds that the node has kept, so that the chart is not empty at first. */
  async #fill() {
    const { seconds } = await api.call('GET', '/api/v1/live/history', { signal: this.#stopping.signal });
    const kept = seconds.map(({ at, allowed, blocked }) => ({
      at: new Date(at), figures: { allowed_per_second: allowed, blocked_per_second: blocked },
    }));
    const first = kept[0]?.at ?? new Date();
    this.samples = this.samples.filter(({ at }) => at < first).concat(kept);
    this.#notify();
  }

  #change(state, figures) {
    this.state = state;
    this.samples.push({ at: new Date(), figures });
    this.latest = figures;
    const oldest = Date.now() - SECONDS_KEPT * 1_000;
    this.samples = this.samples.filter(({ at }) => at.getTime() >= oldest);
    this.#notify();
  }

  #notify() {
    for (const listener of this.#listeners) listener(this);
  }
}

/** The events of a response body. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
        yield parse(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const event = { name: 'message', data: '' };
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) event.name = line.slice(6).trim();
    if (line.startsWith('data:')) event.data += line.slice(5).trim();
  }
  return event;
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
