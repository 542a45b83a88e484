// How the page stands with gymserve, in a word and, where something is wrong, in a sentence.

import { clock, number, say } from "./text.js";

const RESTART_MS = 60000; // for which it is told of

export class Connection {
  #parts;
  #state = { state: "connecting" };
  #heardAt = null;
  #restartedAt = -Infinity;
  #restart = "";

  // parts: the places of the word and the sentence, what is dimmed, and the button that tries at once.
  constructor(parts) {
    this.#parts = parts;
  }

  get isLive() {
    return this.#state.state === "live";
  }

  change(state) {
    this.#state = state;
  }

  hear() {
    this.#heardAt = Date.now() / 1000;
  }

  restarted() {
    this.#restartedAt = performance.now();
    this.#restart = `gymserve was restarted: since ${clock(Date.now() / 1000)} this is another one.`;
  }

  render({ holdsSeeds, stops }) {
    const { pill, notice, shown, retry } = this.#parts;
    if (pill.dataset.state !== this.#state.state) pill.dataset.state = this.#state.state;
    say(pill, this.#word(stops));
    const sentence = this.#trouble(stops) ?? this.#news(holdsSeeds, stops);
    say(notice, sentence);
    notice.hidden = sentence === "";
    shown.classList.toggle("stale", !this.isLive);
    retry.hidden = this.#state.state !== "lost" && this.#state.state !== "refused";
  }

  #word(stops) {
    const { state, retryAt } = this.#state;
    if (state !== "lost") return state === "refused" ? "not let in" : state;
    const left = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
    return `${stops ? "stopped" : "reconnecting"}: again in ${number(left)} s`;
  }

  #trouble(stops) {
    const { state, why, wantsToken } = this.#state;
    if (state === "lost") return `${stops ? "gymserve has stopped" : capital(why)}.${this.#age()}`;
    return state === "refused" && !wantsToken ? `gymserve does not show its sessions: ${why}.` : null;
  }

  #news(holdsSeeds, stops) {
    if (stops && this.isLive) return "gymserve stops: no new sessions are taken, and those that are left end now.";
    if (performance.now() < this.#restartedAt + RESTART_MS) return this.#restart;
    return holdsSeeds && this.isLive ? "Drained: seeds are held back, and gymserve stops when its sessions have ended." : "";
  }

  #age() {
    return this.#heardAt === null ? "" : ` What is shown here is as it was at ${clock(this.#heardAt)}.`;
  }
}

// gymserve's name has none.
function capital(sentence) {
  return sentence.startsWith("gymserve") ? sentence : sentence[0].toUpperCase() + sentence.slice(1);
}
