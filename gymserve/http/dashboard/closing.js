// Closing a run: asked once more, done, and told.

import { Refused, post } from "./calls.js";
import { count, number, say, shown } from "./text.js";

const REFUSED_SECONDS = 60;

export class Closing {
  #dialog;
  #parts;
  #run = null;
  #isToBeAskedAgain = false;

  // onWantToken(why): somebody wants to give another token.
  constructor(dialog, onWantToken) {
    this.#dialog = dialog;
    const part = (name) => dialog.querySelector(`#closing-${name}`);
    const names = ["title", "label", "what", "said", "leave", "act", "token"];
    this.#parts = Object.fromEntries(names.map((name) => [name, part(name)]));
    this.#parts.leave.addEventListener("click", () => dialog.close());
    this.#parts.act.addEventListener("click", () => this.#act());
    this.#parts.token.addEventListener("click", () => {
      dialog.close();
      this.#isToBeAskedAgain = true;
      onWantToken("Closing a run takes the admin token.");
    });
  }

  open(run) {
    const { label, sessions, waiting } = run;
    this.#run = run;
    this.#isToBeAskedAgain = false;
    say(this.#parts.label, shown(label));
    const what = `${count(sessions, "session")} and ${number(waiting)} in the line`;
    this.#tell({
      title: "Close this run?",
      what:
        `It has ${what} now: all of them end, and what was not done is masked. ` +
        `New seeds of this run are refused for ${REFUSED_SECONDS} s.`,
      leave: "leave it",
      mayAct: true,
    });
    this.#dialog.showModal();
    this.#parts.leave.focus();
  }

  // There is another token now: where one was given to close a run, that is still to be confirmed.
  again() {
    if (this.#isToBeAskedAgain) this.open(this.#run);
  }

  async #act() {
    const { label } = this.#run;
    this.#parts.act.disabled = true;
    try {
      const { closed } = await post("close", { label, for_seconds: REFUSED_SECONDS });
      this.#tell({
        title: "Closed",
        what: `${count(closed, "session")} ended. New seeds of this run are refused for ${REFUSED_SECONDS} s.`,
        leave: "done",
      });
    } catch (error) {
      this.#tell({ title: "Not closed", said: `${error.message}.`, leave: "leave it", ...ways(error) });
    } finally {
      this.#parts.act.disabled = false;
      this.#parts.leave.focus();
    }
  }

  #tell({ title, what = "", said = "", leave, mayAct = false, mayGiveToken = false }) {
    say(this.#parts.title, title);
    say(this.#parts.what, what);
    say(this.#parts.said, said);
    say(this.#parts.leave, leave);
    this.#parts.act.hidden = !mayAct;
    this.#parts.token.hidden = !mayGiveToken;
  }
}

// What may be tried after it failed.
function ways(error) {
  const isForbidden = error instanceof Refused && (error.wantsToken || error.status === 403);
  return { mayAct: !isForbidden, mayGiveToken: isForbidden };
}
