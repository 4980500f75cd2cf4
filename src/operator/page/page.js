// The operators' page. It reads and never writes; whatever came from mail is set as text alone.

import { Caught } from "/caught.js";
import { element, emptyRow, field, fill, find, when } from "/nodes.js";
import { Plot, shape } from "/plot.js";

const KEY = "pillarbox-page-key";
const LIMITS = { bounces: 0.05, complaints: 0.001 };
const KEPT = 300;

// The key comes behind the # of the address, which no server sees, and goes from there at once.
function takeKey() {
  const given = location.hash.slice(1);
  if (/^[\w-]{43}$/.test(given)) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY);
}

let key = takeKey();
let samples = [];

class Locked extends Error {}

async function ask(path, signal) {
  const response = await fetch(path, { headers: { Authorization: `Bearer ${key}` }, signal, cache: "no-store" });
  if (response.status === 401) throw new Locked();
  return response;
}

async function read(path) {
  const response = await ask(path);
  const document = await response.json();
  if (!response.ok) throw new Error(document.message ?? document.error?.message ?? `status ${response.status}`);
  return document;
}

const whole = new Intl.NumberFormat("en");
const short = (value) => (value >= 1e6 ? `${Math.round(value / 1e5) / 10}M` : value >= 10000 ? `${Math.round(value / 1000)}k` : value >= 100 || Number.isInteger(value) ? whole.format(Math.round(value)) : value.toFixed(1));
const seconds = (value) => (value === 0 ? "0" : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`);
const mebibytes = (bytes) => `${(bytes / 1048576).toFixed(bytes < 10485760 ? 1 : 0)} MiB`;

function duration(from) {
  const passed = Math.max(0, Math.round(Date.now() / 1000 - from));
  const [days, hours, minutes] = [Math.floor(passed / 86400), Math.floor(passed / 3600) % 24, Math.floor(passed / 60) % 60];
  return days > 0 ? `${days} d ${hours} h` : hours > 0 ? `${hours} h ${minutes} min` : minutes > 0 ? `${minutes} min` : `${passed} s`;
}

// Now

const plots = [
  new Plot("Messages a second", [
    { name: "accepted", value: (sample) => sample.accepted, area: true },
    { name: "sent", value: (sample) => sample.sent },
  ], short, 1),
  new Plot("Queue, messages", [{ name: "pending", value: (sample) => sample.queue, area: true }], short, 1),
  new Plot("Recipients a second", [
    { name: "sent", value: (sample) => sample.recipients, area: true },
    { name: "pace", value: (sample, state) => state?.rate ?? null, limit: true },
    { name: "limit", value: (sample, state) => state?.rateLimit ?? null, limit: true },
  ], short, 1),
  new Plot("Provider's latency", [{ name: "mean", value: (sample) => sample.latency, area: true }], seconds, 0.01),
];
find("plots").append(...plots.map((plot) => plot.figure));

function showConditions(conditions) {
  const told = conditions.map(({ message, advice, ready }) => {
    const box = element("div", null, { class: ready ? "condition" : "condition bad" });
    box.append(element("strong", `${message}.`), element("span", `${advice}.`));
    return box;
  });
  if (told.length === 0) told.push(element("p", "Nothing is wrong: messages are accepted and sent.", { class: "condition good" }));
  // Told again only where it has changed: a screen reader would repeat it every second.
  const text = told.map((box) => box.textContent).join("\n");
  if (showConditions.last !== text) find("conditions").replaceChildren(...told);
  showConditions.last = text;
}

function showTotals({ totals, queue, quota }) {
  const rows = totals.map(([name, count]) => [name, whole.format(count)]);
  rows.push([`queue, of ${mebibytes(queue.maxBytes)}`, mebibytes(queue.bytes)]);
  if (quota) rows.push([`quota left, of ${short(quota.max)}`, short(Math.max(0, quota.left))]);
  find("totals").replaceChildren(...rows.map(([name, value]) => {
    const box = element("div");
    box.append(element("dt", name), element("dd", value));
    return box;
  }));
}

function meter(count, of, limit) {
  const rate = of > 0 ? count / of : 0;
  const box = element("div", null, { class: `meter${rate > limit ? " bad" : rate > limit / 2 ? " warn" : ""}` });
  const text = of > 0 ? `${(rate * 100).toFixed(limit < 0.01 ? 2 : 1)} %` : "–";
  const bar = shape("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": `${text} of a limit of ${limit * 100} %` },
    shape("rect", { class: "track", width: 100, height: 6, rx: 3 }),
    shape("rect", { class: "fill", width: Math.min(100, (rate / limit) * 100), height: 6, rx: 3 }));
  box.append(element("span", text), bar);
  return box;
}

function showOrganisations(organisations) {
  const rows = organisations.map((one) => {
    const row = element("tr");
    row.append(element("th", one.name, { scope: "row" }));
    for (const count of [one.accepted, one.sent, one.failed]) row.append(element("td", whole.format(count), { class: "number" }));
    for (const [count, limit] of [[one.hardBounces, LIMITS.bounces], [one.complaints, LIMITS.complaints]]) {
      const cell = element("td");
      cell.append(meter(count, one.recipients, limit));
      row.append(cell);
    }
    return row;
  });
  fill(find("organisation-rows"), rows.length ? rows : [emptyRow(6, "There is no organisation yet: pillarbox org add NAME")], false);
  const names = organisations.map((one) => one.name).join("\n");
  if (showOrganisations.names === names) return;
  showOrganisations.names = names;
  const select = find("search").elements.organisation;
  const chosen = select.value;
  select.replaceChildren(element("option", "All", { value: "" }), ...organisations.map((one) => element("option", one.name)));
  select.value = chosen;
}

const changes = (state) => state.totals.map(([, count]) => count).join() + state.queue.messages;

function show(state) {
  find("about").textContent = `version ${state.version}, running for ${duration(state.started)}`;
  showConditions(state.conditions);
  showTotals(state);
  showOrganisations(state.organisations);
  for (const plot of plots) plot.draw(samples, state);
  caught.follow(state.caught);
  // The newest page of the list follows what happens, unless somebody reads further back.
  if (changes(state) !== show.before && !listing.deep) search(false);
  show.before = changes(state);
}

// Messages

const listing = { next: null, deep: false, turn: 0 };

function messageRow(message) {
  const row = element("tr");
  const open = element("button", message.createdAt.replace("T", " ").slice(0, 19), { type: "button", class: "row", "data-id": message.id, "aria-label": `Message of ${message.createdAt} to ${message.to.join(", ")}` });
  open.addEventListener("click", () => openMessage(message.id));
  const first = element("td", null, { class: "time" });
  first.append(open);
  const status = element("td");
  status.append(element("span", message.status, { class: `status ${message.status}` }));
  if (message.error) status.append(" ", element("span", message.error.code, { class: "note" }));
  const more = message.to.length > 2 ? ` and ${message.to.length - 2} more` : "";
  row.append(first, status, element("td", message.to.slice(0, 2).join(", ") + more, { class: "text" }), element("td", message.subject, { class: "text" }), element("td", message.organisation, { class: "nowrap" }));
  return row;
}

async function search(further) {
  const turn = ++listing.turn;
  const form = find("search").elements;
  const rows = find("message-rows");
  try {
    const query = new URLSearchParams();
    for (const name of ["organisation", "status", "recipient"]) if (form[name].value.trim()) query.set(name, form[name].value.trim());
    if (further && listing.next) query.set("before", listing.next);
    const page = await read(`/page/messages?${query}`);
    if (turn !== listing.turn) return;
    const focused = document.activeElement?.dataset?.id;
    const found = page.messages.map(messageRow);
    const none = emptyRow(5, page.next ? "None among the newest; look further back." : "There are none.");
    fill(rows, found.length || further ? found : [none], further);
    if (focused) rows.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
    listing.next = page.next;
    find("more-messages").hidden = !page.next;
    find("messages-note").textContent = "";
  } catch (error) {
    fail(error, "messages-note");
  }
}

function entry(at, text, tone, detail) {
  const item = element("li", null, { class: tone });
  item.append(when(at), text);
  if (detail) item.append(element("small", detail));
  return item;
}

const TONES = { delivery: "good", bounce: "bad", complaint: "bad", reject: "bad", delivery_delay: "warn" };

async function openMessage(id) {
  try {
    const message = await read(`/page/messages/${encodeURIComponent(id)}`);
    find("message-title").textContent = message.subject;
    find("message-fields").replaceChildren(
      ...field("Status", message.status), ...field("Id", message.id), ...field("Organisation", message.organisation),
      ...field("From", message.from), ...field("To", message.to.join("\n")), ...field("Attempts", String(message.attempts)),
      ...field("Error", message.error && `${message.error.code}: ${message.error.message}`), ...field("Provider's id", message.sesMessageId));
    const entries = [entry(message.createdAt, "accepted", "")];
    if (message.sentAt) entries.push(entry(message.sentAt, "sent: the provider accepted it", "good"));
    for (const event of message.events) {
      const detail = Object.entries(event.detail).map(([name, value]) => `${name}: ${value}`);
      entries.push(entry(event.occurredAt, `${event.type.replace("_", " ")}: ${event.recipients.join(", ")}`, TONES[event.type] ?? "", detail.join("\n")));
    }
    entries.sort((a, b) => (a.firstChild.dateTime < b.firstChild.dateTime ? -1 : 1));
    find("timeline").replaceChildren(...entries);
    if (!find("message").open) find("message").showModal();
    find("message-title").focus();
  } catch (error) {
    fail(error, "messages-note");
  }
}

find("close").addEventListener("click", () => find("message").close());
find("search").addEventListener("submit", (event) => {
  event.preventDefault();
  // Only when it is asked for: the list follows what happens, and must not open anything by itself.
  const id = find("search").elements.id.value.trim();
  listing.deep = false;
  if (id) openMessage(id);
  else search(false);
});
find("more-messages").addEventListener("click", () => {
  listing.deep = true;
  search(true);
});

// Suppressions

let nextSuppression = null;

async function readSuppressions(further) {
  try {
    const query = new URLSearchParams();
    if (further && nextSuppression) {
      query.set("address", nextSuppression.address);
      if (nextSuppression.organisation !== null) query.set("organisation", nextSuppression.organisation);
    }
    const page = await read(`/page/suppressions?${query}`);
    const rows = page.suppressions.map((one) => {
      const row = element("tr");
      const [since, message] = [element("td", null, { class: "time" }), element("td", null, { class: "nowrap" })];
      since.append(when(one.since));
      if (one.message) {
        const open = element("button", one.message.slice(0, 8) + "…", { type: "button", class: "row", "aria-label": `Message ${one.message}` });
        open.addEventListener("click", () => openMessage(one.message));
        message.append(open);
      }
      row.append(element("td", one.address, { class: "text" }), element("td", one.organisation ?? "(all)", { class: "nowrap" }), element("td", one.reason), since, message);
      return row;
    });
    const table = find("suppression-rows");
    fill(table, rows.length || further ? rows : [emptyRow(5, "Nobody is suppressed.")], further);
    nextSuppression = page.next;
    find("more-suppressions").hidden = !page.next;
    find("suppressions-note").textContent = "";
  } catch (error) {
    fail(error, "suppressions-note");
  }
}

find("more-suppressions").addEventListener("click", () => readSuppressions(true));

// Webhooks

async function readWebhooks() {
  try {
    const { webhooks } = await read("/page/webhooks");
    const rows = webhooks.map((one) => {
      const live = one.deliveries ?? {};
      const state = live.failing && one.state === "active" ? "failing" : one.state;
      const row = element("tr");
      const [shown, behind, answer] = [element("td"), element("td", null, { class: "time" }), element("td", live.lastAnswer ?? "", { class: "text" })];
      shown.append(element("span", state, { class: `status ${{ active: "sent", paused: "queued" }[state] ?? "failed"}` }));
      if (live.behindSince) behind.append(when(live.behindSince));
      row.append(element("th", String(one.id), { scope: "row" }), element("td", one.organisation, { class: "nowrap" }), shown);
      for (const count of [live.delivered, live.waiting, live.failed]) row.append(element("td", whole.format(count ?? 0), { class: "number" }));
      row.append(behind, answer, element("td", one.url, { class: "text" }));
      return row;
    });
    fill(find("webhook-rows"), rows.length ? rows : [emptyRow(9, "There is no endpoint: pillarbox webhook add --org NAME URL")], false);
    find("webhooks-note").textContent = "";
  } catch (error) {
    fail(error, "webhooks-note");
  }
}

// What a stand-in for the provider caught, where there is one

const caught = new Caught(read, (error) => fail(error, "caught-note"));

// The stream

function fail(error, place) {
  if (error instanceof Locked) lock();
  else find(place).textContent = `This could not be read: ${error.message}`;
}

function lock() {
  sessionStorage.removeItem(KEY);
  key = null;
  find("open").hidden = true;
  find("locked").hidden = false;
  link("Locked", "lost");
}

function link(text, state) {
  if (find("link").textContent !== text) find("link").textContent = text;
  find("link").className = state;
}

function take(name, data) {
  if (name === "history") samples = data;
  if (name !== "state") return;
  samples = [...samples, data.sample].slice(-KEPT);
  link("Live", "live");
  show(data);
}

// Reads a stream of server-sent events. The browser's own EventSource cannot carry the key.
async function watch() {
  const response = await ask("/page/live");
  if (!response.ok) throw new Error(`status ${response.status}`);
  find("open").hidden = false;
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
  while (key) {
    try {
      await watch();
    } catch (error) {
      if (error instanceof Locked) break;
    }
    link("The service does not answer; trying again", "lost");
    await new Promise((done) => setTimeout(done, 1000));
  }
  lock();
}

addEventListener("hashchange", () => {
  const before = key;
  key = takeKey();
  if (key && key !== before) location.reload();
});
if (key) {
  readSuppressions(false);
  readWebhooks();
}
setInterval(() => key && !find("open").hidden && readWebhooks(), 5000);
setInterval(() => key && !find("open").hidden && nextSuppression === null && readSuppressions(false), 10000);
run();
