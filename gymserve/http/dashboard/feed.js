// The connection to gymserve: the listing once, the events since, again and again for as long as the page is open.

import { Refused, Unreachable, ask, askJson } from "./calls.js";
import { eventsIn } from "./sse.js";

const PAGE_SESSIONS = 1000;
const FIRST_PAUSE_MS = 1000;
const LAST_PAUSE_MS = 15000;
const MISSED_PAUSE_MS = 500;
const SILENCE_MS = 10000; // gymserve tells how it stands once a second

class Missed extends Error {}

export class Feed {
  #sinks;
  #instance = null;
  #lastId = null;
  #tries = 0;
  #hurry = () => {};

  // onListing(listing, sessions), onEvents(events), onState({ state, why, retryAt, wantsToken }); `state` is "connecting",
  // "live", "lost" or "refused".
  constructor(sinks) {
    this.#sinks = sinks;
  }

  async run() {
    for (;;) {
      try {
        if (this.#lastId === null) await this.#list();
        await this.#follow();
      } catch (error) {
        await this.#bear(error);
      }
    }
  }

  // Something has changed: the network, the token, or somebody's patience.
  hurry() {
    this.#hurry();
  }

  async #list() {
    const sessions = [];
    let first = null;
    let after = null;
    do {
      const query = after === null ? "&ended=true" : `&after=${encodeURIComponent(after)}`;
      const page = await askJson(`sessions?limit=${PAGE_SESSIONS}${query}`);
      first ??= page; // what happens while the other pages are read is among the events since
      sessions.push(...page.sessions);
      after = page.next;
    } while (after !== null);
    this.#instance = first.instance;
    this.#lastId = first.event;
    this.#sinks.onListing(first, sessions);
  }

  async #follow() {
    const abort = new AbortController();
    let heardAt = performance.now();
    const watch = setInterval(() => {
      if (performance.now() > heardAt + SILENCE_MS) abort.abort(new Unreachable("gymserve has fallen silent"));
    }, 1000);
    try {
      const response = await ask("events", { headers: { "Last-Event-ID": this.#lastId }, signal: abort.signal });
      for await (const events of eventsIn(response)) {
        heardAt = performance.now();
        this.#take(events);
      }
    } catch (error) {
      abort.signal.throwIfAborted();
      throw error;
    } finally {
      clearInterval(watch);
      abort.abort();
    }
    throw new Unreachable("gymserve has ended the connection: it stops, or restarts");
  }

  #take(events) {
    for (const { id, name, data } of events) {
      if (name === "missed" || (name === "standing" && data.instance !== this.#instance)) throw new Missed();
      if (id !== null) this.#lastId = id;
    }
    if (events.length === 0) return;
    this.#tries = 0;
    this.#sinks.onState({ state: "live" });
    this.#sinks.onEvents(events);
  }

  async #bear(error) {
    if (error instanceof Missed) {
      this.#lastId = null;
      return this.#pause(MISSED_PAUSE_MS);
    }
    if (!(error instanceof Refused || error instanceof Unreachable)) console.error(error); // a fault of this page
    if (error instanceof Refused && error.status < 500) {
      this.#sinks.onState({ state: "refused", why: error.message, wantsToken: error.wantsToken });
      return this.#pause(Infinity);
    }
    const pause = Math.min(FIRST_PAUSE_MS * 2 ** this.#tries, LAST_PAUSE_MS) * (0.8 + 0.4 * Math.random());
    this.#tries += 1;
    this.#sinks.onState({ state: "lost", why: error.message, retryAt: performance.now() + pause });
    return this.#pause(pause);
  }

  #pause(ms) {
    return new Promise((resolve) => {
      this.#hurry = resolve;
      if (ms !== Infinity) setTimeout(resolve, ms);
    });
  }
}
