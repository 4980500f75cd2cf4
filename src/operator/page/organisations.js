// Organisations with what became of their mail within the last 24 hours.

import { Listing } from "/listing.js";
import { cell, count, element, find, link, when } from "/nodes.js";
import { explained } from "/overview.js";
import { shape } from "/plot.js";
import { address } from "/router.js";
import { read } from "/session.js";

const DAY_MILLIS = 86_400_000;
const COUNTED = ["accepted", "delivered", "bounced", "complained", "failed"];

// What the stream last told of each organisation's bounces and complaints, by its name.
let shares = new Map();
let limits = null;

const listing = new Listing("organisations", {
  rows: "organisation-rows",
  ask: (after) => read(`/page/organisations${after === null ? "" : `?after=${after}`}`),
  row,
  beside: () => [...shares],
  empty: "There is no organisation yet: pillarbox org add NAME",
});

export function show() {
  if (limits) listing.show();
}

export function follow(state) {
  shares = new Map(state.organisations.map((one) => [one.name, one]));
  limits = state.limits;
  find("bounces-explained").textContent = explained(limits.bounces);
  find("complaints-explained").textContent = explained(limits.complaints);
  listing.follow();
}

function row({ name, test, paused, limits: own, keys, keyCount, lastUsedAt, domainCount, day }) {
  const found = element("tr");
  const head = element("th", null, { scope: "row" });
  head.append(link(name, address("messages", { organisation: name })));
  if (test) head.append(element("div", "test: nothing goes to SES", { class: "faint" }));
  if (paused) {
    const since = element("div", "paused since ", { class: "faint" });
    since.append(when(paused.since), `, its sends are ${paused.requests}`);
    head.append(since);
  }
  for (const { period, limit, used } of own) {
    head.append(element("div", `${count(used)} of ${count(limit)} recipients in this ${period}`, { class: "faint" }));
  }
  found.append(head);
  // To the minute, so that an address does not change at each look.
  const from = new Date(Math.floor((Date.now() - DAY_MILLIS) / 60_000) * 60_000).toISOString();
  for (const counted of COUNTED) {
    const to = address("messages", { organisation: name, outcome: counted === "accepted" ? null : counted, from });
    found.append(cell("number", link(count(day[counted]), to, { "aria-label": `${count(day[counted])} ${counted} of ${name}: show these messages` })));
  }
  const { hardBounces = 0, complaints = 0, recipients = 0 } = shares.get(name) ?? {};
  found.append(cell("", meter(hardBounces, recipients, limits.bounces)), cell("", meter(complaints, recipients, limits.complaints)));
  found.append(cell("number", keys.length > 0 ? keyList(keys, keyCount, name) : count(0)), cell("time", lastUsedAt ? when(lastUsedAt) : "–"), cell("number", link(count(domainCount), address("domains", { organisation: name }), { "aria-label": `${count(domainCount)} sender domains of ${name}` })));
  return found;
}

// Shows how many keys there are, and opens to what each may do.
function keyList(keys, keyCount, name) {
  const box = element("details");
  const list = element("ul");
  for (const { id, label, scopes, domains, expiresAt, lastUsedAt, priority, messageExpiresIn } of keys) {
    const rights = `${scopes.join(", ")}${domains.length > 0 ? ` from ${domains.join(", ")}` : ""}`;
    const urgent = priority === "high" ? "; priority high" : "";
    const terms = messageExpiresIn ? `${urgent}; messages expire after ${messageExpiresIn}` : urgent;
    const ends = expiresAt ? `; expires ${when(expiresAt)}` : "";
    list.append(element("li", `${id} ${label}: ${rights}${terms}${ends}; ${lastUsedAt ? `last used ${when(lastUsedAt)}` : "never used"}`));
  }
  if (keyCount > keys.length) list.append(element("li", `and ${count(keyCount - keys.length)} more: pillarbox key list --org ${name}`));
  box.append(element("summary", count(keyCount), { "aria-label": `${count(keyCount)} API keys of ${name}` }), list);
  return box;
}

// Shows a share against SES's limit. A share of few recipients says nothing, and is not judged.
function meter(part, all, { permille, least }) {
  const limit = permille / 1000;
  const share = all > 0 ? part / all : 0;
  if (all < least) {
    return element("span", all === 0 ? "nothing sent" : `${count(part)} of ${count(all)}: too few to judge`, { class: "faint" });
  }
  const text = `${(share * 100).toFixed(limit < 0.01 ? 2 : 1)} %`;
  const box = element("div", null, { class: `meter ${share > limit ? "bad" : share > limit / 2 ? "warn" : "good"}` });
  box.append(element("span", text), shape("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": `${text} of a limit of ${limit * 100} %` },
    shape("rect", { class: "track", width: 100, height: 6, rx: 3 }),
    shape("rect", { class: "fill", width: Math.min(100, (share / limit) * 100), height: 6, rx: 3 })));
  return box;
}
