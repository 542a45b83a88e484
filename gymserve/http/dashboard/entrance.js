// Asking for a token where gymserve wants one.

import { hasToken, setToken } from "./calls.js";
import { say } from "./text.js";

const TOKEN = /^[\x21-\x7e]{16,}$/; // what gymserve takes for one

export class Entrance {
  #form;
  #why;
  #field;
  #forget;

  // onToken(): another one is sent from now on.
  constructor(form, forget, onToken) {
    this.#form = form;
    this.#why = form.querySelector("#entrance-why");
    this.#field = form.querySelector("#token");
    this.#forget = forget;
    form.querySelector("#entrance-leave").addEventListener("click", () => this.close());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#take(this.#field.value.trim(), onToken);
    });
    forget.addEventListener("click", () => {
      setToken(null);
      location.reload();
    });
    forget.hidden = !hasToken();
  }

  open(why) {
    say(this.#why, why);
    if (!this.#form.hidden) return;
    this.#form.hidden = false;
    this.#field.focus();
  }

  close() {
    this.#form.hidden = true;
    this.#field.value = "";
  }

  #take(token, onToken) {
    if (!TOKEN.test(token)) {
      return say(this.#why, "That is no token of gymserve: they have 16 or more visible ASCII characters, without spaces.");
    }
    setToken(token);
    this.#forget.hidden = false;
    this.close();
    onToken();
  }
}
