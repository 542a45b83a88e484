// What is known of gymserve: a listing, and the events since. Nothing here touches the page.

import { Minutes } from "./minutes.js";

const CLOCK_SECONDS = 60;

// Seconds of this page's own clock, which nobody sets.
export function now() {
  return performance.now() / 1000;
}

export class Model {
  instance = null;
  sessions = new Map();
  servers = [];
  line = [];
  waiting = 0;
  oldestWaitSeconds = 0;
  expectedWaitSeconds = null;
  holdsSeeds = false;
  stops = false;
  heldLabels = new Set();
  reclaimedAlive = 0;
  minutes = new Minutes();
  countedSince = Infinity; // seconds since the epoch
  masked = 0;
  verified = 0;
  #clock = new Clock();
  #longestIdleSeconds = 1;

  // A listing, its pages together.
  load(listing, rows) {
    if (listing.instance !== this.instance) this.minutes = new Minutes();
    this.instance = listing.instance;
    this.stops = false;
    this.sessions.clear();
    for (const row of rows) this.#list(row);
    this.#stand(listing);
    this.#count(listing.ended);
  }

  #count(ended) {
    this.minutes.load(ended);
    this.verified = ended.minutes.reduce((sum, { verified }) => sum + verified, 0);
    this.masked = ended.minutes.flatMap(({ masked }) => Object.values(masked)).reduce((sum, count) => sum + count, 0);
    this.countedSince = ended.since_epoch_seconds;
  }

  // The sessions that have no episode yet, of whose progress events do not tell.
  loadUnopened(rows) {
    const listed = new Set(rows.map(({ id }) => id));
    for (const { id, state } of this.sessions.values()) {
      if (isUnopened(state) && !listed.has(id)) this.sessions.delete(id);
    }
    for (const row of rows) {
      // An event may have told more of it than the listing did.
      if (isUnopened(this.sessions.get(row.id)?.state ?? "opening") && isUnopened(row.state)) this.#list(row);
    }
  }

  apply({ name, data }) {
    if (name === "standing") return this.#stand(data);
    this.#clock.hear(data.at_epoch_seconds);
    if (name === "stopping") this.stops = true;
    if (name === "verified") return this.#verified(data);
    if (name === "ended") this.minutes.ended(data.at_epoch_seconds, data.scored);
    if (name === "opened") return this.#opened(data);
    const session = this.sessions.get(data.session);
    if (session !== undefined) this.#happened(session, name, data);
  }

  // Whether sessions are being opened: there are some, or more slots are held than theirs.
  get opens() {
    let held = this.servers.reduce((sum, server) => sum + server.held, 0);
    for (const { state, holdsSlot } of this.sessions.values()) {
      if (isUnopened(state)) return true;
      if (holdsSlot) held -= 1;
    }
    return held > 0;
  }

  // gymserve's clock, as far as events have told it.
  get epochSeconds() {
    return this.#clock.epochSeconds;
  }

  #list(row) {
    const at = now();
    this.sessions.set(row.id, {
      id: row.id,
      label: row.label,
      state: row.state,
      env: row.env,
      holdsSlot: row.holds_slot,
      steps: row.steps,
      reward: row.reward,
      since: at - row.age_seconds,
      deadline: row.idle_deadline_in_seconds === null ? null : at + row.idle_deadline_in_seconds,
      idleSeconds: this.#idleSeconds(row.idle_deadline_in_seconds),
    });
  }

  #stand(told) {
    this.servers = told.servers;
    this.line = told.line;
    this.waiting = told.waiting;
    this.oldestWaitSeconds = told.oldest_wait_seconds;
    this.expectedWaitSeconds = told.expected_wait_seconds;
    this.holdsSeeds = told.holds_seeds;
    this.heldLabels = new Set(told.held_labels);
    this.reclaimedAlive = told.reclaimed_alive;
  }

  #opened(data) {
    const at = this.#clock.ours(data.at_epoch_seconds);
    const session = {
      id: data.session,
      label: data.label,
      state: "idle",
      env: data.env,
      holdsSlot: true,
      steps: 0,
      reward: 0,
      since: this.sessions.get(data.session)?.since ?? at - data.waited_seconds - data.reset_seconds,
      deadline: null,
      idleSeconds: this.#longestIdleSeconds,
    };
    this.sessions.set(session.id, session);
    this.#rest(session, data);
  }

  #happened(session, name, data) {
    switch (name) {
      case "called":
        session.deadline = null;
        if (session.state === "idle") session.state = "busy";
        break;
      case "stepped":
        session.steps = data.steps;
        session.reward = data.reward;
        if (data.done) session.state = "done";
        this.#rest(session, data);
        break;
      case "touched":
        this.#rest(session, data);
        break;
      case "ended":
        session.steps = data.steps;
        session.reward = data.reward;
        session.state = "closing";
        session.deadline = null;
        if (!session.holdsSlot) this.sessions.delete(session.id);
        break;
      case "freed":
        this.#freed(session, data.env);
    }
  }

  // Nothing is in flight, where the idle clock runs.
  #rest(session, data) {
    const left = data.idle_deadline_in_seconds;
    session.deadline = left === null ? null : this.#clock.ours(data.at_epoch_seconds) + left;
    if (left === null) return;
    session.idleSeconds = this.#idleSeconds(left);
    if (session.state === "busy") session.state = "idle";
  }

  // The idle timeout is not told, but how much of it is left when it begins.
  #idleSeconds(left) {
    if (left !== null && left > this.#longestIdleSeconds) this.#longestIdleSeconds = left;
    return left === null ? this.#longestIdleSeconds : left;
  }

  #freed(session, env) {
    session.holdsSlot = false;
    if (session.state === "closing") this.sessions.delete(session.id);
    const server = this.servers.find(({ url }) => url === env);
    // Until gymserve tells how it stands: who waits has the slot at once.
    if (server !== undefined && server.held > 0 && this.waiting === 0) server.held -= 1;
  }

  #verified(data) {
    this.verified += 1;
    if (data.masked_kind === null) return;
    this.masked += 1;
    this.minutes.masked(data.at_epoch_seconds, data.masked_kind);
  }
}

function isUnopened(state) {
  return state === "opening" || state === "waiting";
}

// gymserve's clock by ours: an event comes some time after it happened, the quickest of the last minute or two least.
class Clock {
  #least = Infinity;
  #leastBefore = Infinity;
  #since = 0;

  hear(epochSeconds) {
    const at = now();
    if (at > this.#since + CLOCK_SECONDS) {
      this.#leastBefore = this.#least;
      this.#least = Infinity;
      this.#since = at;
    }
    this.#least = Math.min(this.#least, at - epochSeconds);
  }

  get #offset() {
    const least = Math.min(this.#least, this.#leastBefore);
    return least === Infinity ? now() - Date.now() / 1000 : least;
  }

  ours(epochSeconds) {
    return epochSeconds + this.#offset;
  }

  get epochSeconds() {
    return now() - this.#offset;
  }
}
