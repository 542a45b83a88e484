// The sessions as a table: sorted, filtered, the first of them shown.

import { now } from "./model.js";
import { Rows } from "./rows.js";
import { host, node, number, reward as written, say, seconds, shown } from "./text.js";

const MOST_ROWS = 200;

// By what a column is sorted; null comes last whichever way. `minor` ones are left out where there is no room.
const COLUMNS = [
  { name: "session", key: ({ id }) => id, className: "session-column" },
  { name: "run", key: ({ label }) => label },
  { name: "state", key: ({ state }) => state, className: "state-column" },
  { name: "server", key: ({ env }) => env, className: "server-column minor" },
  { name: "steps", key: ({ steps }) => steps, className: "steps-column number minor" },
  { name: "reward", key: ({ reward }) => reward, className: "reward-column number minor" },
  { name: "age", key: ({ since }) => -since, className: "age-column number minor" },
  { name: "reclaimed in", key: ({ deadline }) => deadline, className: "left-column number" },
];
const AGE = COLUMNS.findIndex(({ name }) => name === "age");

export class Sessions {
  #rows;
  #sum;
  #more;
  #byLabel;
  #byState;
  #heads = [];
  #column = AGE;
  #descends = true;

  // onPick(session id): somebody wants to know more of it. onChange(): other rows are wanted.
  constructor(table, { sum, more, byLabel, byState }, onPick, onChange) {
    this.#rows = new Rows(table.tBodies[0], () => new Row(onPick));
    this.#sum = sum;
    this.#more = more;
    this.#byLabel = byLabel;
    this.#byState = byState;
    byLabel.addEventListener("input", onChange);
    byState.addEventListener("change", onChange);
    COLUMNS.forEach((column, index) => table.tHead.rows[0].append(this.#head(column, index, onChange)));
    this.#markSorted();
  }

  // The state that is wanted alone; "" for all but those in the line.
  get state() {
    return this.#byState.value;
  }

  render(model) {
    const { wanted, all } = this.#filtered(model.sessions);
    const key = COLUMNS[this.#column].key;
    const rows = wanted.map((session) => [key(session), session]).sort(([a], [b]) => compared(a, b, this.#descends));
    const first = rows.slice(0, MOST_ROWS).map(([, session]) => [session.id, session]);
    this.#rows.show(new Map(first));
    say(this.#sum, wanted.length === all ? number(all) : `${number(wanted.length)} of ${number(all)}`);
    const isAsking = this.state === "waiting" && model.waiting > 0 && this.#byLabel.value === "" && wanted.length === 0;
    say(this.#more, this.#rest(wanted.length, all, isAsking));
  }

  #filtered(sessions) {
    const text = this.#byLabel.value.trim().toLowerCase();
    const state = this.state;
    const wanted = [];
    let all = 0;
    for (const session of sessions.values()) {
      if (session.state === "waiting" && state !== "waiting") continue;
      all += 1;
      if (state !== "" && session.state !== state) continue;
      if (text === "" || shown(session.label).toLowerCase().includes(text)) wanted.push(session);
    }
    return { wanted, all };
  }

  #rest(wanted, all, isAsking) {
    if (isAsking) return "Asking for those in the line.";
    if (all === 0) return "No sessions. One appears here when a rollout is seeded.";
    if (wanted === 0) return "None like that.";
    return wanted > MOST_ROWS ? `and ${number(wanted - MOST_ROWS)} more: filter or sort to see them` : "";
  }

  #head({ name, className }, index, onChange) {
    const button = node("button", { type: "button", textContent: name });
    const head = node("th", { scope: "col", className: className ?? "" }, button);
    button.addEventListener("click", () => {
      this.#descends = this.#column === index && !this.#descends;
      this.#column = index;
      this.#markSorted();
      onChange();
    });
    this.#heads.push(head);
    return head;
  }

  #markSorted() {
    this.#heads.forEach((head, index) => {
      head.ariaSort = index !== this.#column ? null : this.#descends ? "descending" : "ascending";
    });
  }
}

function compared(a, b, descends) {
  if (a === b) return 0;
  if (a === null || b === null) return a === null ? 1 : -1;
  return (a < b ? -1 : 1) * (descends ? -1 : 1);
}

class Row {
  #session = null;
  #pick = node("button", { type: "button", className: "id" });
  #label = node("bdi", { className: "label" });
  #state = node("span", { className: "state" });
  #cells;

  constructor(onPick) {
    this.#pick.addEventListener("click", () => onPick(this.#session.id));
    const parts = [this.#pick, this.#label, this.#state];
    this.#cells = COLUMNS.map(({ className }, index) => {
      return node(index ? "td" : "th", { className: className ?? "" }, ...(parts[index] ? [parts[index]] : []));
    });
    this.#cells[0].scope = "row";
    this.node = node("tr", {}, ...this.#cells);
  }

  show(session) {
    if (this.#session === null) this.#name(session);
    this.#session = session;
    const { state, env, steps, reward, since, deadline } = session;
    const at = now();
    if (this.#state.dataset.state !== state) this.#state.dataset.state = this.#state.textContent = state;
    const texts = [host(env), number(steps), written(reward), seconds(at - since), left(deadline, at)];
    texts.forEach((text, index) => say(this.#cells[index + 3], text));
  }

  #name({ id, label }) {
    const text = shown(label);
    say(this.#pick, id);
    say(this.#label, text);
    this.#label.title = text;
    this.#label.classList.toggle("none", label === null);
  }
}

function left(deadline, at) {
  return deadline === null ? "–" : seconds(deadline - at);
}
