// The strip of numbers at the top.

import { node, number, say, seconds } from "./text.js";

const FIGURES = {
  "slots held": (model) => slots(model.servers),
  "sessions": (model) => number(living(model.sessions)),
  "in the line": (model) => number(model.waiting),
  "oldest wait": (model) => (model.waiting ? seconds(model.oldestWaitSeconds) : "–"),
  "expected wait": (model) => (model.expectedWaitSeconds === null ? "not known" : seconds(model.expectedWaitSeconds)),
  "ended, last minute": (model) => number(lately(model)),
  "masked / verified": (model) => `${number(model.masked)} / ${number(model.verified)}`,
  "reclaimed alive": (model) => number(model.reclaimedAlive),
};

export class Figures {
  #places;

  constructor(list) {
    this.#places = Object.entries(FIGURES).map(([name, read]) => {
      const value = node("dd");
      list.append(node("div", {}, node("dt", { textContent: name }), value));
      return { value, read };
    });
  }

  render(model) {
    for (const { value, read } of this.#places) say(value, read(model));
  }
}

// Those without an episode are in the line.
function living(sessions) {
  let count = 0;
  for (const { state } of sessions.values()) count += state !== "waiting" && state !== "closing";
  return count;
}

function slots(servers) {
  const held = servers.reduce((sum, server) => sum + server.held, 0);
  const known = servers.every(({ capacity }) => capacity !== null);
  return `${number(held)} / ${known ? number(servers.reduce((sum, { capacity }) => sum + capacity, 0)) : "?"}`;
}

// The minute before counts for as much of it as the last sixty seconds reach into.
function lately({ minutes, epochSeconds }) {
  const [before, current] = minutes.upTo(epochSeconds).slice(-2).map(({ scored, unscored }) => scored + unscored);
  return Math.round(before * (1 - (epochSeconds % 60) / 60)) + current;
}
