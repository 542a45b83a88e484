// What the page asks gymserve for: by relative addresses, so that it works below any prefix of a proxy, and with the
// token where it was given one.

const KEY = `gymserve token of ${location.pathname}`;

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }

  // What a token may change. 421: a name for this machine that a browser could have been lent.
  get wantsToken() {
    return this.status === 401 || this.status === 421;
  }
}

export class Unreachable extends Error {}

let token = stored();

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // a browser that stores nothing: the token lasts until the page is loaded anew
  }
}

export function hasToken() {
  return token !== null;
}

export function setToken(given) {
  token = given;
  try {
    if (given === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, given);
  } catch {
    // as above
  }
}

// The answer. Throws Refused, Unreachable, or what the signal was aborted with.
export async function ask(path, { headers = {}, signal, ...rest } = {}) {
  const authorization = token === null ? {} : { Authorization: `Bearer ${token}` };
  let response;
  try {
    response = await fetch(path, {
      ...rest, signal, headers: { ...headers, ...authorization }, cache: "no-store", redirect: "error",
    });
  } catch {
    signal?.throwIfAborted();
    throw new Unreachable("gymserve does not answer");
  }
  if (!response.ok) throw new Refused(response.status, await detail(response));
  return response;
}

export async function askJson(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch {
    options?.signal?.throwIfAborted();
    throw new Unreachable("the answer of gymserve was cut off");
  }
}

export function post(path, body) {
  return askJson(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

async function detail(response) {
  try {
    const { detail } = await response.json();
    if (typeof detail === "string") return detail;
  } catch {
    // somebody else's answer: a proxy's
  }
  return `HTTP ${response.status}`;
}
