// The operators' page. It reads and never writes. This file opens it, shows the place that the
// address names, and reads the stream that keeps it live.

import * as captured from "/captured.js";
import * as documents from "/documents.js";
import * as domains from "/domains.js";
import * as help from "/help.js";
import * as keys from "/keys.js";
import * as message from "/message.js";
import * as messages from "/messages.js";
import { find } from "/nodes.js";
import * as organisations from "/organisations.js";
import * as overview from "/overview.js";
import { place } from "/router.js";
import { Locked, ask, askForSession, begin, canSignOut, forget, isOpen, keyGiven, signIn, signOut, takeFromAddress, takeFromField } from "/session.js";
import * as suppressions from "/suppressions.js";
import * as webhooks from "/webhooks.js";

// Each view has show(place, before), and follow(state) for each look at the service; one that goes on
// by itself has hide().
const VIEWS = { overview, messages, message, organisations, keys, domains, suppressions, webhooks, documents, captured, help };
const RETRY_MILLIS = 1000;
// The service tells of itself once a second. After so long without a word, the page says so.
const SILENT_MILLIS = 3000;
// After so long, the connection is given up and made anew.
const GIVEN_UP_MILLIS = 15_000;

let before = null;
let latest = null;
let isShown = false;
// When the service last told of itself, and why it may not do so now.
let heardAt = null;
let silence = "";
let stopWatching = null;

function duration(from) {
  const passed = Math.max(0, Math.round(Date.now() / 1000 - from));
  const [days, hours, minutes] = [Math.floor(passed / 86400), Math.floor(passed / 3600) % 24, Math.floor(passed / 60) % 60];
  return days > 0 ? `${days} d ${hours} h` : hours > 0 ? `${hours} h ${minutes} min` : minutes > 0 ? `${minutes} min` : `${passed} s`;
}

// Shows the place that the address names.
function showPlace() {
  const here = { ...place(), address: location.hash };
  for (const tab of Object.keys(VIEWS)) find(tab).hidden = tab !== here.tab;
  for (const link of find("tabs").children) {
    // A message belongs to the list of messages.
    const isCurrent = link.hash === `#/${here.tab === "message" ? "messages" : here.tab}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // A text that was searched for stays at what it found.
  if (here.tab !== "messages" && here.tab !== "message") find("find").elements.text.value = "";
  const isNew = before !== null && (before.tab !== here.tab || before.id !== here.id);
  if (before !== null && before.tab !== here.tab) VIEWS[before.tab].hide?.();
  VIEWS[here.tab].show(here, before);
  if (isNew) {
    scrollTo(0, 0);
    [...find(here.tab).querySelectorAll("h2")].find((heading) => heading.checkVisibility())?.focus({ preventScroll: true });
  }
  if (latest) VIEWS[here.tab].follow(latest);
  before = here;
  showTitle();
}

// Names what is shown, and how many problems there are.
function showTitle() {
  const problems = latest?.conditions.length ?? 0;
  const title = `${problems > 0 ? `(${problems}) ` : ""}${find(place().tab).dataset.title} – pillarbox`;
  if (document.title !== title) document.title = title;
}

function follow(state) {
  latest = state;
  find("about").textContent = `pillarbox ${state.version}, running for ${duration(state.started)}.`;
  find("captured-tab").hidden = state.caught === null;
  const problems = state.conditions.length;
  find("problems").hidden = problems === 0;
  find("problems").textContent = problems === 1 ? "1 problem" : `${problems} problems`;
  find("problems").className = state.conditions.some((one) => one.severity === "critical") ? "bad" : "warn";
  VIEWS[place().tab].follow(state);
  showTitle();
}

function showLink(text, state) {
  if (find("link").textContent !== text) find("link").textContent = text;
  find("link").className = state;
}

function open() {
  find("locked").hidden = true;
  for (const part of ["tabs", "find", "open"]) find(part).hidden = false;
  find("sign-out").hidden = !canSignOut();
  if (!isShown) showPlace();
  isShown = true;
}

function lock(reason) {
  find("locked").hidden = false;
  for (const part of ["tabs", "find", "open", "problems"]) find(part).hidden = true;
  find("key-note").textContent = reason;
  isShown = false;
  before = null;
  showLink("Locked", "lost");
}

function take(name, data) {
  if (name === "history") overview.begin(data);
  if (name !== "state") return;
  heardAt = Date.now();
  overview.note(data.sample);
  showLink("Live", "live");
  follow(data);
}

// Reads a stream of server-sent events. The browser's own EventSource cannot carry the key.
async function watch() {
  const stopped = new AbortController();
  stopWatching = () => stopped.abort();
  const response = await ask("/page/live", stopped.signal);
  if (!response.ok) throw new Error(`status ${response.status}`);
  open();
  silence = "the connection is open, but the service sends nothing";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const value = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      take(value("event"), JSON.parse(value("data")));
    }
  }
}

async function run() {
  let reason = "";
  for (;;) {
    if (!isOpen()) find("password").hidden = !(await askForSession());
    if (!isOpen()) lock(reason);
    await keyGiven();
    try {
      await watch();
    } catch (error) {
      if (error instanceof Locked) {
        reason = canSignOut()
          ? "Your sign-in has ended. Sign in again."
          : "The service refused this key. Each start of the service creates a new one.";
        forget();
        heardAt = null;
        continue;
      }
    }
    silence = "the service does not answer; trying again";
    if (heardAt === null) showLink("The service does not answer; trying again", "lost");
    await new Promise((done) => setTimeout(done, RETRY_MILLIS));
  }
}

// Says how old what is shown is, and why.
function showSilence() {
  if (heardAt === null || !isOpen()) return;
  const passed = Date.now() - heardAt;
  if (passed > SILENT_MILLIS) showLink(`Last update ${Math.floor(passed / 1000)} s ago: ${silence}`, "lost");
  if (passed > GIVEN_UP_MILLIS) stopWatching?.();
}

function showZone() {
  const minutes = -new Date().getTimezoneOffset();
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const offset = `UTC${minutes < 0 ? "−" : "+"}${two(Math.abs(minutes) / 60)}:${two(Math.abs(minutes) % 60)}`;
  find("zone").textContent = minutes === 0 ? "Times are in UTC." : `Times are in ${Intl.DateTimeFormat().resolvedOptions().timeZone} (${offset}). Point at a time to see it in UTC.`;
}

find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = find("key").elements.key;
  if (!takeFromField(given.value)) find("key-note").textContent = "This is not a key. Paste the whole address that the command prints.";
  given.value = "";
});
find("password").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = find("password").elements.password;
  find("key-note").textContent = (await signIn(given.value)) ?? "";
  given.value = "";
});
find("sign-out").addEventListener("click", signOut);
document.querySelector("a.skip").addEventListener("click", (event) => {
  event.preventDefault();
  find("main").focus();
});
addEventListener("titled", showTitle);
setInterval(showSilence, 1000);
addEventListener("hashchange", () => {
  // Somebody pasted the address with a key into an open page: its key may be newer.
  if (takeFromAddress()) location.reload();
  else if (isShown) showPlace();
});
showZone();
begin();
run();
