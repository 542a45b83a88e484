// Server-sent events out of a fetch: EventSource can send no token.

import { Unreachable } from "./calls.js";

// Yields the events of each piece that arrives, [{ id, name, data }]; comments make an empty list, a sign of life. Throws
// Unreachable.
export async function* eventsIn(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new Parser();
  for (;;) {
    const { value, done } = await read(reader);
    if (done) return;
    yield parser.feed(value);
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch {
    throw new Unreachable("the connection to gymserve was lost");
  }
}

// https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
class Parser {
  #rest = "";
  #id = null;
  #name = "message";
  #data = [];

  feed(piece) {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) {
      const text = line.endsWith("\r") ? line.slice(0, -1) : line;
      if (text === "") this.#dispatch(events);
      else this.#field(text);
    }
    return events;
  }

  #field(text) {
    const colon = text.indexOf(":");
    const [field, value] = colon < 0 ? [text, ""] : [text.slice(0, colon), text.slice(colon + 1).replace(/^ /, "")];
    if (field === "id") this.#id = value;
    else if (field === "event") this.#name = value;
    else if (field === "data") this.#data.push(value);
  }

  #dispatch(events) {
    if (this.#data.length) events.push({ id: this.#id, name: this.#name, data: JSON.parse(this.#data.join("\n")) });
    this.#id = null; // here only events with an id of their own can be returned to
    this.#name = "message";
    this.#data = [];
  }
}
