// The runs: who has sessions, who waits, and the way to close one.

import { Rows } from "./rows.js";
import { count, node, number, say, seconds, shown } from "./text.js";

const MOST_RUNS = 50;

export class Runs {
  #rows;
  #sum;
  #more;

  // onClose(run): somebody wants to close it.
  constructor(body, sum, more, onClose) {
    this.#rows = new Rows(body, () => new Row(onClose));
    this.#sum = sum;
    this.#more = more;
  }

  render(model) {
    const runs = runsOf(model);
    const longest = Math.max(1, ...runs.map(({ waiting }) => waiting));
    const most = runs.slice(0, MOST_RUNS);
    this.#rows.show(new Map(most.map((run) => [run.label, { ...run, share: run.waiting / longest }])));
    say(this.#sum, model.waiting ? `${number(model.waiting)} waiting` : "nobody waits");
    say(this.#more, more(runs));
  }
}

// Who waits most first, then who has most.
function runsOf(model) {
  const runs = new Map();
  const run = (label) => {
    if (!runs.has(label)) {
      const isHeld = model.heldLabels.has(label);
      runs.set(label, { label, isHeld, sessions: 0, waiting: 0, oldestWaitSeconds: null });
    }
    return runs.get(label);
  };
  for (const label of model.heldLabels) run(label);
  for (const { label, state } of model.sessions.values()) {
    if (state !== "waiting") run(label).sessions += 1;
  }
  for (const { label, waiting, oldest_wait_seconds } of model.line) {
    Object.assign(run(label), { waiting, oldestWaitSeconds: oldest_wait_seconds });
  }
  return [...runs.values()].sort((a, b) => {
    return b.waiting - a.waiting || b.sessions - a.sessions || (shown(a.label) < shown(b.label) ? -1 : 1);
  });
}

function more(runs) {
  if (runs.length === 0) return "No sessions, and nobody in the line.";
  return runs.length > MOST_RUNS ? `and ${count(runs.length - MOST_RUNS, "run")} more, with fewer` : "";
}

class Row {
  #run = null;
  #label = node("bdi", { className: "label" });
  #held = node("span", { className: "badge", textContent: "held", title: "closed when the process ends that holds it" });
  #sessions = node("td", { className: "number" });
  #waiting = node("span");
  #bar = node("i", { className: "bar" });
  #oldest = node("td", { className: "number" });
  #close = node("button", { type: "button", className: "plain", textContent: "close…" });

  constructor(onClose) {
    this.#close.addEventListener("click", () => onClose(this.#run));
    const head = node("th", { scope: "row" }, this.#label, " ", this.#held);
    const waiting = node("td", { className: "number" }, this.#bar, this.#waiting);
    this.node = node("tr", {}, head, this.#sessions, waiting, this.#oldest, node("td", {}, this.#close));
  }

  show(run) {
    if (this.#run === null) this.#name(run.label);
    if (run.share !== this.#run?.share) this.#bar.style.setProperty("--share", run.share);
    this.#run = run;
    this.#held.hidden = !run.isHeld;
    say(this.#sessions, number(run.sessions));
    say(this.#waiting, number(run.waiting));
    say(this.#oldest, run.waiting ? seconds(run.oldestWaitSeconds) : "–");
  }

  #name(label) {
    const text = shown(label);
    say(this.#label, text);
    this.#label.title = text;
    this.#label.classList.toggle("none", label === null);
    this.#close.hidden = label === null; // gymserve closes runs by their labels
    this.#close.ariaLabel = `close the run ${text}`;
  }
}
