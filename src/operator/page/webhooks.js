// Endpoints that receive events, and each with its last attempts.

import { Listing } from "/listing.js";
import { ago, cell, copied, copyButton, count, element, emptyRow, field, fill, find, link, mark, when } from "/nodes.js";
import { address, messageAddress } from "/router.js";
import { read, report } from "/session.js";

const TONES = { active: "good", paused: "warn" };
export const DELIVERY_TONES = { delivered: "good", waiting: "warn", failed: "bad" };
const REFRESH_MILLIS = 5000;

let id = null;
let readAt = 0;
let shownText = null;

const listing = new Listing("webhooks", {
  rows: "webhook-rows",
  ask: () => read("/page/webhooks"),
  row,
  empty: "There is no endpoint. Add one: pillarbox webhook add --org NAME URL",
  refreshSeconds: 5,
});

export function show(place) {
  id = place.id;
  find("webhooks-list").hidden = id !== null;
  find("webhook").hidden = id === null;
  find("webhooks").dataset.title = id === null ? "Webhooks" : `Endpoint ${id}`;
  if (id === null) return listing.show();
  shownText = null;
  find("webhook-title").textContent = `Endpoint ${id}`;
  find("webhook-fields").replaceChildren();
  fill(find("attempt-rows"), []);
  return refresh();
}

export function follow() {
  if (id === null) listing.follow();
  else if (Date.now() - readAt > REFRESH_MILLIS) refresh();
}

const stateOf = (one) => (one.deliveries?.failing && one.state === "active" ? "failing" : one.state);
const stateMark = (one) => mark(stateOf(one), TONES[stateOf(one)] ?? "bad");

function row(one) {
  const live = one.deliveries ?? {};
  const found = element("tr");
  const head = element("th", null, { scope: "row" });
  head.append(link(String(one.id), address("webhooks", {}, String(one.id)), { "aria-label": `Endpoint ${one.id}: show its attempts` }));
  found.append(head, cell("nowrap", one.organisation), cell("", stateMark(one)));
  for (const total of [live.delivered, live.waiting, live.failed]) found.append(cell("number", count(total ?? 0)));
  found.append(cell("time", live.behindSince ? ago(live.behindSince) : "–"), cell("text", live.lastAnswer ?? "–"), cell("text", one.url));
  return found;
}

async function refresh() {
  readAt = Date.now();
  const wanted = id;
  try {
    const shown = await read(`/page/webhooks/${encodeURIComponent(wanted)}`);
    const text = JSON.stringify(shown);
    if (wanted !== id || text === shownText) return;
    shownText = text;
    draw(shown);
    find("webhook-note").textContent = "";
  } catch (error) {
    report(error, find("webhook-note"));
  }
}

function draw(one) {
  const live = one.deliveries ?? {};
  find("webhook-title").textContent = `Endpoint ${one.id} of ${one.organisation}`;
  find("webhook-fields").replaceChildren(
    ...field("State", stateMark(one)),
    ...(one.pausedAt ? field("Paused", when(one.pausedAt)) : []),
    ...field("URL", ...copied(one.url, "the endpoint's URL")),
    ...field("Types", one.types.join(", ")),
    ...field("Created", when(one.createdAt)),
    ...field("Delivered", count(live.delivered ?? 0)), ...field("Waiting", count(live.waiting ?? 0)), ...field("Failed", count(live.failed ?? 0)),
    ...(live.behindSince ? field("Behind since", when(live.behindSince)) : []),
    ...field("Last answer", live.lastAnswer),
    ...field("Test it", ...copied(`pillarbox webhook test ${one.id}`, "the command that sends a test event")),
    ...field("Send again", ...copied(`pillarbox webhook replay ${one.id} --since 1h`, "the command that sends all events of the last hour again")),
    ...(one.state === "active" ? [] : field("Resume it", ...copied(`pillarbox webhook resume ${one.id}`, "the command that resumes the endpoint"))));
  // Whoever reads an answer goes on reading it.
  const opened = new Set([...document.querySelectorAll("#attempt-rows details[open]")].map((details) => details.dataset.key));
  fill(find("attempt-rows"), one.attempts.length ? one.attempts.map((attempt) => attemptRow(one.id, attempt, opened)) : [emptyRow(9, "There has been no attempt since the process started. Waiting events get their next attempt when it is due.")]);
}

function attemptRow(endpoint, attempt, opened) {
  const found = element("tr");
  const key = `${attempt.event} ${attempt.attempt}`;
  const again = copyButton(`pillarbox webhook replay ${endpoint} --event ${attempt.event}`, `that sends ${attempt.event} again`, "Copy command");
  const message = link(`…${attempt.message.slice(-8)}`, messageAddress(attempt.message), { "aria-label": `Message …${attempt.message.slice(-8)}` });
  found.append(
    cell("time", ago(attempt.at)), cell("", mark(attempt.state, DELIVERY_TONES[attempt.state] ?? "plain")), cell("nowrap", attempt.type), cell("nowrap", message),
    cell("number", String(attempt.attempt)), cell("text", answer(attempt, key, opened)), cell("number nowrap", took(attempt.tookMillis)),
    cell("time", attempt.nextAttemptAt ? when(attempt.nextAttemptAt) : "–"), cell("nowrap", again));
  return found;
}

const took = (millis) => (millis < 1000 ? `${millis} ms` : `${(millis / 1000).toFixed(1)} s`);

// Shows the answer in a word, and opens to its beginning.
function answer({ answer: said, body }, key, opened) {
  if (body === "") return said;
  const box = element("details", null, { "data-key": key });
  box.open = opened.has(key);
  box.append(element("summary", said), element("pre", body, { tabindex: "0", role: "region", "aria-label": "Beginning of the answer" }));
  return box;
}
