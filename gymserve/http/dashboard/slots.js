// Each server's slots as cells. A session keeps its cell until its slot is given back.

import { now } from "./model.js";
import { count, host, node, number, say, seconds, shown } from "./text.js";

const LARGE_CELLS = 64; // all in all, with words in them
const MIDDLE_CELLS = 500;
const LEVELS = 16; // in which an idle cell empties
const ORDER = ["busy", "idle", "opening", "done", "closing", "free"];

export class Slots {
  #place;
  #sum;
  #servers = new Map();

  // onPick(session id): somebody wants to know more of a session.
  constructor(place, sum, onPick) {
    this.#place = place;
    this.#sum = sum;
    place.addEventListener("pointerover", ({ target }) => this.#describe(target));
    place.addEventListener("click", ({ target }) => {
      const session = this.#sessionAt(target);
      if (session) onPick(session.id);
    });
  }

  render(model) {
    const seated = seatedByServer(model);
    this.#dropAllBut(seated);
    const cells = model.servers.reduce((sum, { url, held, capacity }) => {
      return sum + Math.max(held, capacity ?? 0, seated.get(url).length);
    }, 0);
    this.#place.dataset.size = cells <= LARGE_CELLS ? "large" : cells <= MIDDLE_CELLS ? "middle" : "small";
    const at = now();
    for (const server of model.servers) {
      this.#server(server.url).render(server, seated.get(server.url), at, cells <= LARGE_CELLS);
    }
    say(this.#sum, model.servers.length > 1 ? count(model.servers.length, "environment server") : "");
  }

  #dropAllBut(wanted) {
    for (const [url, server] of this.#servers) {
      if (wanted.has(url)) continue;
      server.node.remove();
      this.#servers.delete(url);
    }
  }

  #server(url) {
    let server = this.#servers.get(url);
    if (server === undefined) {
      server = new Server(url);
      this.#servers.set(url, server);
      this.#place.append(server.node);
    }
    return server;
  }

  #sessionAt(target) {
    return target.closest?.(".cells") ? this.#servers.get(target.closest(".server").dataset.url)?.sessionAt(target) : null;
  }

  #describe(target) {
    if (!target.closest?.(".cells") || !target.classList.contains("cell")) return;
    const session = this.#sessionAt(target);
    target.title = session ? described(session) : target.dataset.state;
  }
}

function seatedByServer(model) {
  const seated = new Map(model.servers.map(({ url }) => [url, []]));
  for (const session of model.sessions.values()) {
    if (session.holdsSlot) seated.get(session.env)?.push(session);
  }
  return seated;
}

function described({ id, label, state, steps, deadline }) {
  const left = deadline === null ? "" : `, reclaimed in ${seconds(deadline - now())}`;
  return `${id} of ${shown(label)}: ${state}, ${count(steps, "step")}${left}`;
}

class Server {
  #state = node("span", { className: "badge" });
  #held = node("span", { className: "held" });
  #sum = node("span", { className: "quiet" });
  #cells;
  #shown = [];
  #seats = new Map();

  constructor(url) {
    this.#cells = node("div", { className: "cells" });
    this.#cells.setAttribute("role", "img");
    const head = node("p", {}, node("strong", { textContent: host(url) }), this.#state, this.#held, this.#sum);
    this.node = node("article", { className: "server" }, head, this.#cells);
    this.node.dataset.url = url;
  }

  sessionAt(cell) {
    return this.#shown.find((each) => each.node === cell)?.session ?? null;
  }

  render(server, sessions, at, isLarge) {
    const seats = this.#seat(sessions);
    let opening = Math.max(0, server.held - sessions.length); // held by what has no session yet that we know
    const size = Math.max(server.capacity ?? 0, seats.length, sessions.length + opening);
    const sums = Object.fromEntries(ORDER.map((state) => [state, 0]));
    for (let index = 0; index < size; index += 1) {
      const session = seats[index] ?? null;
      const state = session?.state ?? (opening-- > 0 ? "opening" : "free");
      sums[state] += 1;
      this.#cell(index).show(state, session, at, isLarge);
    }
    for (const cell of this.#shown.splice(size)) cell.node.remove();
    this.#tell(server, sums);
  }

  // The sessions by their cells: each where it was, new ones in the first that are free.
  #seat(sessions) {
    const seats = [];
    const strangers = [];
    const seated = new Map();
    for (const session of sessions) {
      const seat = this.#seats.get(session.id);
      if (seat === undefined) strangers.push(session);
      else seats[seat] = session;
    }
    let free = 0;
    for (const stranger of strangers) {
      while (seats[free] !== undefined) free += 1;
      seats[free] = stranger;
    }
    seats.forEach((session, seat) => seated.set(session.id, seat));
    this.#seats = seated;
    return seats;
  }

  #cell(index) {
    if (index === this.#shown.length) {
      const cell = new Cell();
      this.#shown.push(cell);
      this.#cells.append(cell.node);
    }
    return this.#shown[index];
  }

  #tell(server, sums) {
    say(this.#state, server.state);
    this.#state.dataset.state = server.state;
    say(this.#held, `${number(server.held)} / ${server.capacity === null ? "?" : number(server.capacity)}`);
    const held = ORDER.filter((state) => sums[state] > 0).map((state) => `${number(sums[state])} ${state}`);
    const unknown = server.capacity === null ? ["its capacity is not known yet"] : [];
    const sentence = [...(held.length ? held : ["nothing held"]), ...unknown].join(", ");
    say(this.#sum, sentence);
    if (this.#cells.ariaLabel !== sentence) this.#cells.ariaLabel = sentence;
  }
}

class Cell {
  node = node("i", { className: "cell" });
  session = null;
  #state = "";
  #level = -1;
  #text = "";

  show(state, session, at, isLarge) {
    this.session = session;
    if (state !== this.#state) this.node.dataset.state = this.#state = state;
    if (state === "idle") this.#empty(session, at);
    const text = isLarge ? words(state, session, at) : "";
    if (text !== this.#text) this.node.textContent = this.#text = text;
  }

  #empty({ deadline, idleSeconds }, at) {
    const left = deadline === null ? 1 : (deadline - at) / idleSeconds;
    const level = Math.ceil(Math.min(1, Math.max(0, left)) * LEVELS);
    if (level !== this.#level) this.node.style.setProperty("--left", `${((this.#level = level) / LEVELS) * 100}%`);
  }
}

function words(state, session, at) {
  if (state === "free") return "";
  return state === "idle" && session.deadline !== null ? seconds(session.deadline - at) : state;
}
