// One session: what it is, and what has happened to it.

import { Refused, askJson } from "./calls.js";
import { clock, host, node, number, say, seconds, shown } from "./text.js";

const AGAIN_MS = 1000;

export class Details {
  #drawer;
  #parts;
  #id = null;
  #opener = null;
  #askedAt = -Infinity;
  #isAsking = false;
  #timeline = "";

  constructor(drawer) {
    this.#drawer = drawer;
    const part = (name) => drawer.querySelector(`#details-${name}`);
    this.#parts = Object.fromEntries(["title", "facts", "said", "timeline"].map((name) => [name, part(name)]));
    part("leave").addEventListener("click", () => this.#close());
    drawer.addEventListener("keydown", ({ key }) => key === "Escape" && this.#close());
  }

  open(id) {
    this.#id = id;
    this.#opener = document.activeElement;
    this.#askedAt = -Infinity;
    say(this.#parts.title, `Session ${id}`);
    say(this.#parts.said, "");
    this.#parts.facts.replaceChildren();
    this.#parts.timeline.replaceChildren();
    this.#timeline = "";
    this.#drawer.hidden = false;
    this.#parts.title.focus();
    this.refresh();
  }

  // Asks for it anew, if it is not too soon.
  async refresh() {
    if (this.#id === null || this.#isAsking || performance.now() < this.#askedAt + AGAIN_MS) return;
    const id = this.#id;
    this.#isAsking = true;
    this.#askedAt = performance.now();
    try {
      const told = await askJson(`sessions/${encodeURIComponent(id)}`);
      if (id === this.#id) this.#show(told);
    } catch (error) {
      if (id !== this.#id) return;
      say(this.#parts.said, `${reason(error)}.`);
      if (error instanceof Refused) this.#askedAt = Infinity;
    } finally {
      this.#isAsking = false;
    }
  }

  #close() {
    this.#id = null;
    this.#drawer.hidden = true;
    if (this.#opener?.isConnected) this.#opener.focus();
  }

  #show({ session, tombstone, timeline, left_out }) {
    const facts = session === null ? { state: "over", ...tombstone } : session;
    this.#parts.facts.replaceChildren(...Object.entries(facts).filter(isTold).flatMap(([name, value]) => [
      node("dt", { textContent: words(name) }),
      node("dd", {}, node("bdi", { textContent: written(name, value) })),
    ]));
    say(this.#parts.said, left_out ? `${number(left_out)} of its events are not kept any more.` : "");
    const text = JSON.stringify(timeline);
    if (text === this.#timeline) return; // somebody may be marking what it says
    this.#timeline = text;
    const first = timeline[0]?.at_epoch_seconds;
    this.#parts.timeline.replaceChildren(...timeline.map((event) => entry(event, first)));
  }
}

function reason(error) {
  return error instanceof Refused && error.status === 404 ? "gymserve remembers nothing of it any more" : error.message;
}

function entry({ at_epoch_seconds: at, event, ...fields }, first) {
  const told = Object.entries(fields).filter(isTold).map(([name, value]) => `${words(name)} ${written(name, value)}`);
  return node(
    "li", {},
    node("time", { textContent: `+${number(Math.round((at - first) * 1000) / 1000)} s`, title: clock(at) }),
    node("strong", { textContent: words(event) }),
    node("bdi", { className: "quiet", textContent: told.join(", ") }),
  );
}

// Its id is in the title, and its label among the facts.
function isTold([name, value]) {
  return value !== null && value !== undefined && name !== "id" && name !== "session";
}

function words(name) {
  return name.replace(/(_epoch)?_seconds$/, "").replaceAll("_", " ");
}

function written(name, value) {
  if (name.endsWith("_epoch_seconds")) return clock(value);
  if (name === "age_seconds") return seconds(value);
  if (name.endsWith("_seconds")) return `${number(Math.round(value * 1000) / 1000)} s`;
  if (name === "env") return host(value);
  if (typeof value === "number") return number(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return shown(typeof value === "string" ? value : JSON.stringify(value));
}
