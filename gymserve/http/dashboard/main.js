// The page: what it is made of, and when it is drawn.

import { askJson, hasToken } from "./calls.js";
import { Chart, endings, masks } from "./charts.js";
import { Closing } from "./closing.js";
import { Connection } from "./connection.js";
import { Details } from "./details.js";
import { Entrance } from "./entrance.js";
import { Feed } from "./feed.js";
import { Figures } from "./figures.js";
import { Model } from "./model.js";
import { Runs } from "./runs.js";
import { Sessions } from "./sessions.js";
import { Slots } from "./slots.js";
import { clock, say } from "./text.js";

const DRAWN_EVERY_MS = 500;
const UNOPENED_EVERY_MS = 2000;
const UNOPENED_SESSIONS = 200;
const WHO_MAY_LOOK = "This gymserve shows its sessions to who has its token, or its admin token.";

const place = (id) => document.getElementById(id);

const model = new Model();
const connection = new Connection({
  pill: place("connection"), notice: place("notice"), shown: place("shown"), retry: place("retry"),
});
const entrance = new Entrance(place("entrance"), place("forget"), () => {
  feed.hurry();
  closing.again();
});
const closing = new Closing(place("closing"), (why) => entrance.open(why));
const details = new Details(place("details"));
const figures = new Figures(place("figures"));
const slots = new Slots(place("servers"), place("slots-sum"), (id) => details.open(id));
const runs = new Runs(place("runs").tBodies[0], place("runs-sum"), place("runs-more"), (run) => closing.open(run));
const sessions = new Sessions(
  place("sessions"),
  { sum: place("sessions-sum"), more: place("sessions-more"), byLabel: place("by-label"), byState: place("by-state") },
  (id) => details.open(id),
  () => sessions.render(model),
);
const charts = [
  new Chart(place("rollouts"), "Rollouts ended, a minute", endings, 0),
  new Chart(place("masks"), "Verifies masked, a minute", masks, 2),
];

const feed = new Feed({
  onListing(listing, rows) {
    if (model.instance !== null && model.instance !== listing.instance) connection.restarted();
    model.load(listing, rows);
    say(place("instance"), listing.instance);
  },
  onEvents(events) {
    connection.hear();
    for (const event of events) model.apply(event);
  },
  onState(state) {
    if (state.state === "live" && connection.isLive) return;
    if (state.state === "live") entrance.close();
    if (state.wantsToken) entrance.open(hasToken() ? `${state.why}.` : WHO_MAY_LOOK);
    connection.change(state);
    if (!document.hidden) requestAnimationFrame(draw);
  },
});

function draw() {
  connection.render(model);
  if (model.instance === null) return;
  figures.render(model);
  slots.render(model);
  runs.render(model);
  sessions.render(model);
  if (connection.isLive) details.refresh();
  const minutes = model.minutes.upTo(model.epochSeconds);
  for (const chart of charts) chart.render(minutes, model.countedSince);
  const isWhole = model.countedSince <= minutes[0].startsAt;
  const since = isWhole ? "over the last half hour" : `since gymserve started, ${clock(model.countedSince)}`;
  for (const said of document.querySelectorAll(".since")) say(said, since);
}

// Of sessions without an episode events tell little: who wants to see them, asks.
async function lookForUnopened() {
  const states = [...(model.opens ? ["opening"] : []), ...(sessions.state === "waiting" ? ["waiting"] : [])];
  if (document.hidden || !connection.isLive || states.length === 0) return;
  try {
    const asked = states.map((state) => askJson(`sessions?state=${state}&limit=${UNOPENED_SESSIONS}`));
    model.loadUnopened((await Promise.all(asked)).flatMap((listing) => listing.sessions));
  } catch {
    // whatever it is, the feed will tell of it
  }
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) feed.hurry();
});
window.addEventListener("online", () => feed.hurry());
place("retry").addEventListener("click", () => feed.hurry());
setInterval(() => document.hidden || requestAnimationFrame(draw), DRAWN_EVERY_MS);
setInterval(lookForUnopened, UNOPENED_EVERY_MS);
draw();
feed.run();
