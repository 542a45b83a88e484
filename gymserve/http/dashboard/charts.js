// What ended in each minute of the last half hour, as stacked bars.

import { SHOWN_MINUTES } from "./minutes.js";
import { clock, node, number, say } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const MINUTE_WIDTH = 10;
const WIDTH = SHOWN_MINUTES * MINUTE_WIDTH;
const HEIGHT = 100;
const COLOURS = 8;

// The rollouts that ended: evidence or not.
export function endings(minutes) {
  return [
    { name: "scored", counts: minutes.map(({ scored }) => scored) },
    { name: "not scored", counts: minutes.map(({ unscored }) => unscored) },
  ];
}

// The verifies that were masked, by kind.
export function masks(minutes) {
  const kinds = [...new Set(minutes.flatMap(({ masks }) => [...masks.keys()]))].sort();
  return kinds.map((name) => ({ name, counts: minutes.map(({ masks }) => masks.get(name) ?? 0) }));
}

export class Chart {
  #what;
  #series;
  #firstColour;
  #svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  #scale = node("span", { className: "scale quiet" });
  #legend = node("ul", { className: "legend" });
  #colours = new Map();
  #drawn = "";

  // what: the chart's name, for who cannot see it. series(minutes): [{ name, counts }], from below. firstColour: so that
  // two charts do not give one colour to different things.
  constructor(place, what, series, firstColour) {
    this.#what = what;
    this.#series = series;
    this.#firstColour = firstColour;
    const axis = ["30 minutes ago", "15", "now"].map((textContent) => node("span", { textContent }));
    place.append(this.#scale, this.#svg, node("p", { className: "axis quiet" }, ...axis), this.#legend);
  }

  render(minutes, seenSinceEpochSeconds) {
    const series = this.#series(minutes);
    const state = JSON.stringify([minutes[0].startsAt, series]);
    if (state === this.#drawn) return;
    this.#drawn = state;
    for (const { name } of series) this.#colour(name);
    const totals = minutes.map((_, index) => series.reduce((sum, { counts }) => sum + counts[index], 0));
    const top = topOfScale(Math.max(...totals));
    const unseen = Math.min(WIDTH, Math.max(0, ((seenSinceEpochSeconds - minutes[0].startsAt) / 60) * MINUTE_WIDTH));
    this.#svg.replaceChildren(
      svg("rect", { class: "unseen", x: 0, y: 0, width: unseen, height: HEIGHT }),
      ...minutes.map((minute, index) => this.#stack(series, index, top, minute.startsAt)),
    );
    say(this.#scale, number(top));
    this.#tell(series, totals);
  }

  #stack(series, index, top, startsAt) {
    const stack = svg("g", {});
    const told = [];
    let y = HEIGHT;
    for (const { name, counts } of series) {
      const height = (counts[index] / top) * HEIGHT;
      if (height === 0) continue;
      y -= height;
      const x = index * MINUTE_WIDTH + 1;
      stack.append(svg("rect", { class: `colour-${this.#colour(name)}`, x, y, width: MINUTE_WIDTH - 2, height }));
      told.push(`${number(counts[index])} ${name}`);
    }
    const title = svg("title", {});
    title.textContent = `${clock(startsAt).slice(0, 5)}: ${told.join(", ") || "none"}`;
    stack.append(svg("rect", { class: "hit", x: index * MINUTE_WIDTH, y: 0, width: MINUTE_WIDTH, height: HEIGHT }), title);
    return stack;
  }

  // Each name keeps the one that it was given first.
  #colour(name) {
    if (!this.#colours.has(name)) this.#colours.set(name, (this.#firstColour + this.#colours.size) % COLOURS);
    return this.#colours.get(name);
  }

  #tell(series, totals) {
    const sums = series.map(({ name, counts }) => ({ name, sum: counts.reduce((a, b) => a + b, 0) }));
    this.#legend.replaceChildren(...sums.map(({ name, sum }) => {
      const key = node("i", { className: `key colour-${this.#colour(name)}` });
      return node("li", {}, key, `${name} `, node("b", { textContent: number(sum) }));
    }));
    if (sums.length === 0) this.#legend.append(node("li", { textContent: "none" }));
    const told = sums.map(({ name, sum }) => `${number(sum)} ${name}`).join(", ") || "none";
    this.#svg.ariaLabel = `${this.#what}, as seen in the last half hour: ${told}; ${number(totals.at(-1))} in this minute`;
  }
}

// 1, 2, 5, 10, 20, ...: not below the highest.
function topOfScale(highest) {
  for (let unit = 1; ; unit *= 10) {
    for (const step of [1, 2, 5]) if (step * unit >= highest) return step * unit;
  }
}

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
