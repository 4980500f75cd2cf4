// Organisations with what became of their mail within the last 24 hours; and each with its limits, keys,
// domains and endpoints.

import { explained } from "/conditions.js";
import { Counter } from "/counts.js";
import { Listing } from "/listing.js";
import { ago, cell, copied, count, element, field, find, link, several, when } from "/nodes.js";
import { showTiles } from "/overview.js";
import { shape } from "/plot.js";
import { address } from "/router.js";
import { read, report } from "/session.js";

const DAY_MILLIS = 86_400_000;
const COUNTED = ["accepted", "delivered", "bounced", "complained", "failed"];
const OUTCOMES_SHOWN = ["queued", "sent", "delivered", "delayed", "bounced", "complained", "rejected", "failed", "suppressed"];
const REFRESH_MILLIS = 10_000;

// What the stream last told of each organisation's bounces and complaints, by its name.
let shares = new Map();
let limits = null;
let id = null;
let readAt = 0;
let counted = { changes: null, isCounting: false, at: 0 };

const counter = new Counter(() => {
  if (!counter.isComplete) return;
  find("organisations-counted").textContent = `Counted at ${new Date(counter.at).toLocaleTimeString("en-GB")}.`;
  if (id === null) listing.redraw();
  else drawTiles();
});
const listing = new Listing("organisations", {
  rows: "organisation-rows",
  ask: (after) => read(`/page/organisations${after === null ? "" : `?after=${after}`}`),
  row,
  beside: () => [[...shares], counter.at],
  empty: "There is no organisation yet. Add one: pillarbox org add NAME",
});

export function show(place) {
  id = place.id;
  find("organisations-list").hidden = id !== null;
  find("organisation").hidden = id === null;
  find("organisations").dataset.title = id ?? "Organisations";
  if (id !== null) {
    find("organisation-title").textContent = id;
    find("organisation-fields").replaceChildren();
    find("organisation-tiles").replaceChildren();
    delete find("organisation-tiles").dataset.names;
    if (counter.isComplete) drawTiles();
    open(id);
  } else if (limits) listing.show();
}

export function hide() {
  counter.stop();
  counted = { changes: null, isCounting: false, at: 0 };
}

export function follow(state) {
  const isFirst = limits === null;
  shares = new Map(state.organisations.map((one) => [one.name, one]));
  limits = state.limits;
  find("bounces-explained").textContent = explained(limits.bounces);
  find("complaints-explained").textContent = explained(limits.complaints);
  countDay(state.sample.at, `${state.changes} ${state.queue.messages}`);
  if (id === null && isFirst) listing.show();
  else if (id === null) listing.follow();
  else if (Date.now() - readAt > REFRESH_MILLIS) open(id);
}

// Counts the messages of the last 24 hours, unless nothing has changed, or it was just done.
async function countDay(until, changes) {
  const pause = Math.max(REFRESH_MILLIS, 10 * counter.millis);
  if (counted.isCounting || (counter.isComplete && (changes === counted.changes || Date.now() - counted.at < pause))) return;
  const filter = { from: new Date(until - DAY_MILLIS).toISOString(), until: new Date(until + 1).toISOString() };
  const mine = { changes, isCounting: true, at: 0 };
  counted = mine;
  try {
    await counter.count(filter, counter.isComplete);
  } catch (error) {
    report(error, find("organisations-note"));
  }
  if (counted === mine) Object.assign(counted, { isCounting: false, at: Date.now() });
}

const sum = (outcomes) => Object.values(outcomes).reduce((all, one) => all + one, 0);

async function open(wanted) {
  readAt = Date.now();
  try {
    const query = new URLSearchParams({ organisation: wanted });
    const [{ organisations }, { webhooks }] = await Promise.all([read(`/page/organisations?${query}`), read(`/page/webhooks?${query}`)]);
    if (wanted !== id) return;
    find("organisation-note").textContent = organisations.length ? "" : `There is no organisation ${wanted}.`;
    if (organisations.length) draw(organisations[0], webhooks);
  } catch (error) {
    if (wanted === id) report(error, find("organisation-note"));
  }
}

function draw(one, webhooks) {
  const { name, test, paused, limits: own, keyCount, keys, lastUsedAt, domainCount, domains } = one;
  const { hardBounces = 0, complaints = 0, recipients = 0 } = shares.get(name) ?? {};
  const text = JSON.stringify([one, webhooks, hardBounces, complaints, recipients]);
  if (draw.last === text && find("organisation-fields").hasChildNodes()) return;
  draw.last = text;
  const listed = (items, of) => items.flatMap((item, index) => [index > 0 ? ", " : "", of(item)]);
  find("organisation-fields").replaceChildren(
    ...field("Messages", link("Show all", address("messages", { organisation: name }))),
    ...(test ? field("Test", "None of its mail goes to SES") : []),
    ...(paused ? field("Paused", "since ", when(paused.since), `; its send requests are ${paused.requests}`) : []),
    ...field("Limits", own.length ? own.map(({ period, limit, used }) => `${count(used)} of ${count(limit)} recipients in the current ${period}`).join("\n") : "none"),
    ...field("Hard bounces", limits ? meter(hardBounces, recipients, limits.bounces) : null),
    ...field("Complaints", limits ? meter(complaints, recipients, limits.complaints) : null),
    ...field("API keys", link(several(keyCount, "key"), address("keys", { organisation: name })), keys.length ? `: ${keys.map((key) => `${key.id} ${key.label}`.trim()).join(", ")}` : "", keyCount > keys.length ? ", …" : ""),
    ...field("Last use of a key", lastUsedAt ? ago(lastUsedAt) : "never"),
    ...field("Domains", link(several(domainCount, "domain"), address("domains", { organisation: name })), domains.length ? ": " : "", ...listed(domains, ({ domain }) => link(domain, address("domains", {}, domain))), domainCount > domains.length ? ", …" : ""),
    ...field("Endpoints", webhooks.length ? "" : "none", ...listed(webhooks, ({ id: number, url }) => link(`${number} ${url}`, address("webhooks", {}, String(number))))),
    ...field("Limit it", ...copied(`pillarbox org limit ${name} --per-day 1000`, "the command that limits the organisation")),
    ...(paused ? field("Resume it", ...copied(`pillarbox org resume ${name}`, "the command that resumes the organisation")) : field("Pause it", ...copied(`pillarbox org pause ${name}`, "the command that pauses the organisation"))));
}

function drawTiles() {
  const outcomes = counter.outcomes(id);
  const to = (more) => address("messages", { ...more, organisation: id, ...counter.filter });
  showTiles(find("organisation-tiles"), [
    ["accepted", "last 24 hours", count(sum(outcomes)), to({})],
    ...OUTCOMES_SHOWN.map((outcome) => [outcome === "sent" ? "sent, no event" : outcome, "last 24 hours", count(outcomes[outcome] ?? 0), to({ outcome })]),
  ]);
}

function row({ name, test, paused, limits: own, keyCount, lastUsedAt, domainCount }) {
  const found = element("tr");
  const head = element("th", null, { scope: "row" });
  head.append(link(name, address("organisations", {}, name)));
  if (test) head.append(element("div", "test: nothing goes to SES", { class: "faint" }));
  if (paused) {
    const since = element("div", "paused since ", { class: "faint" });
    since.append(when(paused.since), `; its send requests are ${paused.requests}`);
    head.append(since);
  }
  for (const { period, limit, used } of own) {
    head.append(element("div", `${count(used)} of ${count(limit)} recipients in the current ${period}`, { class: "faint" }));
  }
  found.append(head);
  const outcomes = counter.outcomes(name);
  for (const one of COUNTED) {
    const value = one === "accepted" ? sum(outcomes) : outcomes[one] ?? 0;
    const to = address("messages", { organisation: name, outcome: one === "accepted" ? null : one, ...counter.filter });
    found.append(cell("number", counter.total === null ? "…" : link(count(value), to, { "aria-label": `${count(value)} ${one} of ${name}: show these messages` })));
  }
  const { hardBounces = 0, complaints = 0, recipients = 0 } = shares.get(name) ?? {};
  found.append(cell("", meter(hardBounces, recipients, limits.bounces)), cell("", meter(complaints, recipients, limits.complaints)));
  found.append(
    cell("number", link(count(keyCount), address("keys", { organisation: name }), { "aria-label": `${several(keyCount, "API key")} of ${name}` })), cell("time", lastUsedAt ? ago(lastUsedAt) : "–"),
    cell("number", link(count(domainCount), address("domains", { organisation: name }), { "aria-label": `${several(domainCount, "sender domain")} of ${name}` })));
  return found;
}

// Shows a share against SES's limit. A share of few recipients says nothing, and is not judged.
function meter(part, all, { permille, least }) {
  const limit = permille / 1000;
  const share = all > 0 ? part / all : 0;
  if (all < least) {
    return element("span", all === 0 ? "no figures" : `${count(part)} of ${count(all)}: too few to judge`, { class: "faint" });
  }
  const text = `${(share * 100).toFixed(limit < 0.01 ? 2 : 1)} %`;
  const box = element("div", null, { class: `meter ${share > limit ? "bad" : share > limit / 2 ? "warn" : "good"}` });
  box.append(element("span", text), shape("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": `${text} of a limit of ${limit * 100} %` },
    shape("rect", { class: "track", width: 100, height: 6, rx: 3 }),
    shape("rect", { class: "fill", width: Math.min(100, (share / limit) * 100), height: 6, rx: 3 })));
  return box;
}
