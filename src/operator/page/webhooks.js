// Endpoints that are told of events.

import { Listing } from "/listing.js";
import { cell, count, element, mark, when } from "/nodes.js";
import { read } from "/session.js";

const TONES = { active: "good", paused: "warn" };

const listing = new Listing("webhooks", {
  rows: "webhook-rows",
  ask: () => read("/page/webhooks"),
  row,
  empty: "There is no endpoint: pillarbox webhook add --org NAME URL",
  refreshSeconds: 5,
});

export const show = () => listing.show();
export const follow = () => listing.follow();

function row(one) {
  const live = one.deliveries ?? {};
  const state = live.failing && one.state === "active" ? "failing" : one.state;
  const found = element("tr");
  found.append(element("th", String(one.id), { scope: "row" }), cell("nowrap", one.organisation), cell("", mark(state, TONES[state] ?? "bad")));
  for (const total of [live.delivered, live.waiting, live.failed]) found.append(cell("number", count(total ?? 0)));
  found.append(cell("time", live.behindSince ? when(live.behindSince) : "–"), cell("text", live.lastAnswer ?? "–"), cell("text", one.url));
  return found;
}
