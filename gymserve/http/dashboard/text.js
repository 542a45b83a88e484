// Words and numbers as people read them. All text goes into the page as text: nothing here or elsewhere makes markup.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
const COARSE = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

// What is not seen, or turns the direction of what follows: shown by its number, as in "\u202e".
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function shown(label) {
  if (label === null) return "(no label)";
  return label.replace(UNSEEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function node(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

// Text that is there already costs nothing.
export function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

// Minutes and seconds, or what is longer.
export function seconds(value) {
  const whole = Math.max(0, Math.floor(value));
  const hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (whole >= 86400) return `${Math.floor(whole / 86400)}d ${two(hours)}h`;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

function two(digits) {
  return digits < 10 ? `0${digits}` : `${digits}`;
}

export function number(value) {
  if (Number.isInteger(value)) return value < 1000 && value >= 0 ? `${value}` : WHOLE.format(value);
  return reward(value);
}

export function reward(value) {
  return Math.abs(value) < 1000 ? FINE.format(value) : COARSE.format(value);
}

export function count(value, one) {
  return `${number(value)} ${one}${value === 1 ? "" : "s"}`;
}

export function clock(epochSeconds) {
  return new Date(epochSeconds * 1000).toLocaleTimeString("en-GB");
}

export function host(url) {
  return url === null ? "–" : url.replace(/^https?:\/\//, "");
}
