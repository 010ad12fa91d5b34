// The chart of the last 15 minutes as SVG: allowed as an area, blocked as a dashed line.

import { rate, clock } from './words.js';

const HEIGHT = 220;
const SPACE = { left: 46, right: 12, top: 12, bottom: 24 };
/** Seconds that are further apart than this are not connected by a line. */
const GAP_MS = 5_000;
/** Distance of two points of a line. */
const PIXELS_APART = 4;
const SVG = 'http://www.w3.org/2000/svg';

function draw(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** The next round number, for the top of the scale. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 5, 8, 10].find((step) => step * power >= value);
}

/**
 * A chart in `place` of the last `seconds`. Calls `readout(sample, pointed)` with the second under
 * the pointer, or with the newest one.
 */
export class Chart {
  #place;
  #seconds;
  #readout;
  #samples = [];
  #pointed = null;

  constructor(place, seconds, readout) {
    this.#place = place;
    this.#seconds = seconds;
    this.#readout = readout;
    place.addEventListener('pointermove', (event) => this.#point(event.clientX - place.getBoundingClientRect().left));
    place.addEventListener('pointerleave', () => this.#point(null));
    new ResizeObserver(() => this.#render()).observe(place);
  }

  show(samples) {
    this.#samples = samples.map(({ at, figures }) => ({
      at, lost: figures === null, allowed: figures?.allowed_per_second ?? null, blocked: figures?.blocked_per_second ?? null,
    }));
    this.#render();
    this.#tell();
  }

  #point(x) {
    this.#pointed = x;
    this.#render();
    this.#tell();
  }

  #tell() {
    this.#readout(this.#under() ?? this.#samples.at(-1) ?? null, this.#pointed !== null);
  }

  /** The second under the pointer. */
  #under() {
    if (this.#pointed === null) return null;
    const known = this.#runs().flat();
    const distance = (sample) => Math.abs(this.#x(sample.at) - this.#pointed);
    return known.reduce((best, sample) => (best === null || distance(sample) < distance(best) ? sample : best), null);
  }

  #x(at) {
    const width = this.#place.clientWidth - SPACE.left - SPACE.right;
    const newest = this.#samples.at(-1)?.at ?? new Date();
    return SPACE.left + width * (1 - (newest - at) / 1_000 / this.#seconds);
  }

  #render() {
    const width = this.#place.clientWidth;
    if (!width) return;
    const runs = this.#runs();
    const highest = Math.max(1, ...runs.flat().flatMap(({ allowed, blocked }) => [allowed, blocked]));
    const top = roundUp(highest);
    const bottom = HEIGHT - SPACE.bottom;
    const y = (value) => bottom - (bottom - SPACE.top) * (value / top);
    const svg = draw('svg', { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: 'img', 'aria-label': this.#summary() });
    for (const value of [0, top / 2, top]) {
      svg.append(draw('line', { class: 'grid', x1: SPACE.left, x2: width - SPACE.right, y1: y(value), y2: y(value) }));
      svg.append(draw('text', { class: 'tick', x: SPACE.left - 8, y: y(value) + 4, 'text-anchor': 'end' }, rate(value)));
    }
    const newest = this.#samples.at(-1)?.at ?? new Date();
    const step = width < 520 ? 300 : 180;
    for (let ago = 0; ago <= this.#seconds; ago += step) {
      const x = this.#x(new Date(newest - ago * 1_000));
      const anchor = ago === 0 ? 'end' : ago === this.#seconds ? 'start' : 'middle';
      svg.append(draw('text', { class: 'tick', x, y: HEIGHT - 6, 'text-anchor': anchor }, ago === 0 ? 'now' : `−${ago / 60} min`));
    }
    for (const run of runs) {
      const points = (name) => run.map((sample) => `${this.#x(sample.at).toFixed(1)},${y(sample[name]).toFixed(1)}`).join(' L');
      const [first, last] = [this.#x(run[0].at), this.#x(run.at(-1).at)];
      svg.append(draw('path', { class: 'area', d: `M${first},${bottom} L${points('allowed')} L${last},${bottom} Z` }));
      svg.append(draw('path', { class: 'allowed', d: `M${points('allowed')}` }));
      svg.append(draw('path', { class: 'blocked', d: `M${points('blocked')}` }));
    }
    const under = this.#under();
    if (under) {
      const x = this.#x(under.at);
      svg.append(draw('line', { class: 'pointer', x1: x, x2: x, y1: SPACE.top, y2: bottom }));
      svg.append(draw('circle', { class: 'allowed', cx: x, cy: y(under.allowed), r: 3.5 }));
      svg.append(draw('circle', { class: 'blocked', cx: x, cy: y(under.blocked), r: 3.5 }));
    }
    this.#place.replaceChildren(svg);
  }

  /** Runs of consecutive seconds. The lines have a gap while the connection is lost. */
  #runs() {
    const runs = [[]];
    for (const sample of this.#samples) {
      const before = runs.at(-1).at(-1);
      if (sample.lost || (before && sample.at - before.at > GAP_MS)) runs.push([]);
      if (sample.allowed !== null) runs.at(-1).push(sample);
    }
    return runs.filter((run) => run.length > 0).map((run) => this.#averaged(run));
  }

  /** The averages of a few seconds each, as many as keep the points some pixels apart. */
  #averaged(run) {
    const length = 1_000 * Math.max(1, Math.round((this.#seconds * PIXELS_APART) / this.#place.clientWidth));
    const groups = Map.groupBy(run, ({ at }) => Math.floor(at / length));
    const mean = (group, value) => group.reduce((sum, sample) => sum + value(sample), 0) / group.length;
    return [...groups.values()].map((group) => ({
      at: new Date(mean(group, ({ at }) => at.getTime())), allowed: mean(group, ({ allowed }) => allowed), blocked: mean(group, ({ blocked }) => blocked),
    }));
  }

  #summary() {
    const known = this.#samples.filter(({ allowed }) => allowed !== null);
    if (!known.length) return 'Checks per second: no figures yet';
    const most = (name) => rate(Math.max(...known.map((sample) => sample[name])));
    return `Checks per second since ${clock(known[0].at)}: at most ${most('allowed')} allowed and ${most('blocked')} blocked. The table below lists the numbers.`;
  }
}
