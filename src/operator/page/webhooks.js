// Endpoints that are told of events.

import { cell, count, element, emptyRow, fill, find, mark, when } from "/nodes.js";
import { read, report } from "/session.js";

const REFRESH_SECONDS = 5;
const TONES = { active: "good", paused: "warn" };

let readAt = 0;
let shownText = null;

export function show() {
  shownText = null;
  refresh();
}

export function follow() {
  if (Date.now() - readAt > REFRESH_SECONDS * 1000) refresh();
}

async function refresh() {
  readAt = Date.now();
  try {
    const { webhooks } = await read("/page/webhooks");
    find("webhooks-note").textContent = "";
    const text = JSON.stringify(webhooks);
    if (text === shownText) return;
    shownText = text;
    fill(find("webhook-rows"), webhooks.length ? webhooks.map(row) : [emptyRow(9, "There is no endpoint: pillarbox webhook add --org NAME URL")]);
  } catch (error) {
    report(error, find("webhooks-note"));
  }
}

function row(one) {
  const live = one.deliveries ?? {};
  const state = live.failing && one.state === "active" ? "failing" : one.state;
  const found = element("tr");
  found.append(element("th", String(one.id), { scope: "row" }), cell("nowrap", one.organisation), cell("", mark(state, TONES[state] ?? "bad")));
  for (const total of [live.delivered, live.waiting, live.failed]) found.append(cell("number", count(total ?? 0)));
  found.append(cell("time", live.behindSince ? when(live.behindSince) : "–"), cell("text", live.lastAnswer ?? "–"), cell("text", one.url));
  return found;
}
