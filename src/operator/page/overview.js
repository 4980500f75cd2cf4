// The overview: what is wrong, how it goes now, and counts and plots of a span of time.

import { Counter } from "/counts.js";
import { showConditions } from "/conditions.js";
import { cell, count, element, fill, find, link, localTime, mark, several, when } from "/nodes.js";
import { Plot } from "/plot.js";
import { address, place } from "/router.js";
import { read, report } from "/session.js";

const KEPT = 300;
const FIVE_MINUTES = { name: "5 minutes", ago: "5 min ago", refresh: 5 };
const RANGES = {
  "5m": FIVE_MINUTES,
  "1h": { name: "hour", ago: "1 h ago", refresh: 10 },
  "1d": { name: "24 hours", ago: "24 h ago", refresh: 30 },
  "7d": { name: "7 days", ago: "7 days ago", refresh: 60 },
  "30d": { name: "30 days", ago: "30 days ago", refresh: 60 },
  "90d": { name: "90 days", ago: "90 days ago", refresh: 60 },
};
// What is drawn of the history: what happened in each step.
const DRAWN = ["accepted", "sent", "delivered", "bounced", "complained", "failed", "suppressed"];
// A count of all messages takes a while if there are many: then it is made less often.
const COUNT_PART = 10;
const TILES = ["delivered", "delayed", "bounced", "complained", "rejected", "failed", "suppressed"];
const UNSENT = ["queued", "sending", "failed", "suppressed"];
const STEPS = { 5: "per 5 seconds", 60: "a minute", 3600: "an hour", 21600: "per 6 hours", 86400: "a day" };

const short = (value) => (value >= 1e6 ? `${Math.round(value / 1e5) / 10}M` : value >= 10000 ? `${Math.round(value / 1000)}k` : value >= 100 || Number.isInteger(value) ? count(Math.round(value)) : value.toFixed(1));
const seconds = (value) => (value === 0 ? "0" : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`);

function bytes(value) {
  const [unit, size] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, least]) => value >= least) ?? [value === 1 ? "byte" : "bytes", 1];
  return `${Number((value / size).toFixed(value / size < 10 ? 1 : 0))} ${unit}`;
}

// The provider's rate, or null if it is none that anybody reaches, as the simulator's.
const limited = (rate) => ((rate ?? Infinity) >= 1e6 ? null : rate);

const livePlots = [
  new Plot("Messages a second", [
    { name: "accepted", colour: "blue", value: (sample) => sample.accepted, area: true },
    { name: "sent", colour: "good", value: (sample) => sample.sent },
  ], short, 1),
  new Plot("Queue, messages", [{ name: "pending", colour: "blue", value: (sample) => sample.queue, area: true }], short, 1),
  new Plot("Recipients a second", [
    { name: "sent", colour: "blue", value: (sample) => sample.recipients, area: true },
    { name: "limit now", colour: "good", value: (sample, state) => limited(state?.rate), limit: true },
    { name: "limit without throttling", colour: "warn", value: (sample, state) => limited(state?.rateLimit), limit: true },
  ], short, 1),
  new Plot("Provider's latency", [{ name: "mean", colour: "blue", value: (sample) => sample.latency, area: true }], seconds, 0.01),
];
const series = (name, colour, area) => ({ name, colour, area, value: (sample) => sample[name] });
const volume = new Plot("", [series("accepted", "blue", true), series("sent", "good", false)], short, 1);
const results = new Plot("", [
  series("delivered", "good", true), series("bounced", "bad", false), series("complained", "warn", false),
  series("failed", "blue", false), series("suppressed", "faint", false),
], short, 1);

let samples = [];
let range = "5m";
let organisation = null;
let readAt = 0;
let turn = 0;
let span = null;
let latest = null;
let counted = { at: 0, changes: null };
const counter = new Counter(() => showCounts());

find("live-plots").append(...livePlots.map((plot) => plot.figure));
find("range-plots").append(volume.figure, results.figure);
find("range-organisation").addEventListener("change", (event) => {
  location.hash = address("overview", { range, organisation: event.target.value });
});

export function show({ filter }) {
  range = Object.hasOwn(RANGES, filter.get("range")) ? filter.get("range") : "5m";
  organisation = filter.get("organisation");
  span = null;
  find("ranges").replaceChildren(...Object.entries(RANGES).map(([key, { name }]) => {
    const choice = link(name, address("overview", { range: key, organisation }));
    if (key === range) choice.setAttribute("aria-current", "true");
    return choice;
  }));
  counter.stop();
  counted = { at: 0, changes: null };
  showCounts();
  readHistory();
}

export function hide() {
  counter.stop();
}

// Takes the looks of the last minutes.
export function begin(history) {
  samples = history;
}

export function note(sample) {
  samples = [...samples, sample].slice(-KEPT);
}

export function follow(state) {
  latest = state;
  showConditions(state);
  showNow(state);
  showOrganisations(state.organisations.map((one) => one.name));
  showNodes(state.nodes);
  const until = samples.at(-1)?.at ?? Date.now();
  for (const plot of livePlots) plot.draw(samples, { from: until - KEPT * 1000, until, ago: FIVE_MINUTES.ago }, state);
  if (Date.now() - readAt > RANGES[range].refresh * 1000) readHistory();
  countRange();
}

// Counts the range's messages up to the latest state's instant and with it, unless nothing has
// changed, or it was just done.
async function countRange() {
  if (span === null || latest === null || counted.isCounting) return;
  const [until, changes] = [latest.sample.at, `${latest.changes} ${latest.queue.messages}`];
  const pause = Math.max(RANGES[range].refresh * 1000, COUNT_PART * counter.millis);
  if (counter.isComplete && (changes === counted.changes || Date.now() - counted.at < pause)) return;
  const mine = { isCounting: true, changes };
  counted = mine;
  try {
    await counter.count({ from: span, until: new Date(until + 1).toISOString() }, counter.isComplete);
  } catch (error) {
    report(error, find("overview-note"));
  }
  if (counted === mine) counted = { ...mine, isCounting: false, at: Date.now() };
}

function showNow({ queue, bodies, rate, quota, totals, started }) {
  const refused = totals.find(([name]) => name === "refused")[1];
  const begun = localTime(started * 1000).slice(0, 16);
  const tiles = [
    ["queued", "now", count(queue.messages - queue.inFlight), address("messages", { outcome: "queued" })],
    ["sending", "now", count(queue.inFlight), address("messages", { outcome: "sending" })],
    ["queue memory", `of ${bytes(queue.maxBytes)}`, bytes(queue.bytes), null],
    ["rate limit", "recipients a second", limited(rate) === null ? "no limit" : short(rate), null],
    ...(quota ? [["quota left", `of ${short(quota.max)} in 24 hours`, short(Math.max(0, quota.left)), null]] : []),
    ["requests refused", `since ${begun}`, count(refused), null],
  ];
  showTiles(find("now-tiles"), tiles);
  find("bodies").textContent = `Pending messages: ${bodies}.`;
}

const NODE_TONES = { working: "good", draining: "warn", silent: "bad" };

// Shows the nodes on the database. A service with a data file has none to show.
function showNodes(nodes) {
  find("nodes").hidden = nodes.length === 0;
  // Drawn again only if it has changed, so that whoever reads or selects is not disturbed.
  const text = JSON.stringify(nodes);
  if (showNodes.last !== text) fill(find("node-rows"), nodes.map(nodeRow));
  showNodes.last = text;
}

function nodeRow(node) {
  const row = element("tr");
  const state = node.silentSeconds === null ? node.state : `silent for ${count(node.silentSeconds)} s`;
  row.append(element("th", node.answers ? `${node.name} (this one)` : node.name, { scope: "row" }));
  row.append(cell("nowrap", mark(state, NODE_TONES[node.state])), cell("nowrap", node.version), cell("time", when(node.startedAt)));
  row.append(cell("number", count(node.pendingMessages)), cell("number", `${Math.round(node.share * 100)} %`));
  for (const names of [node.duties, node.conditions]) row.append(cell("text", names.length ? names.join(", ") : "–"));
  return row;
}

function showOrganisations(names) {
  const all = names.join("\n");
  const select = find("range-organisation");
  if (showOrganisations.last !== all) select.replaceChildren(element("option", "All", { value: "" }), ...names.map((name) => element("option", name)));
  if (showOrganisations.last !== all || document.activeElement !== select) select.value = organisation ?? "";
  showOrganisations.last = all;
}

// Shows tiles, each [name, period, value, address or null]. A tile keeps its nodes, so that whoever
// is at its link stays there.
export function showTiles(list, tiles) {
  const names = tiles.map(([name]) => name).join();
  if (list.dataset.names !== names) {
    list.replaceChildren(...tiles.map(([name, , , to]) => {
      const [box, term, value] = [element("div"), element("dt", name), element("dd")];
      term.append(element("small"));
      value.append(to === null ? element("span") : element("a", null, { class: "whole" }));
      box.append(term, value);
      return box;
    }));
    list.dataset.names = names;
  }
  tiles.forEach(([name, period, value, to], index) => {
    const [term, shown] = list.children[index].children;
    term.lastChild.textContent = period;
    shown.firstChild.textContent = value;
    if (to === null) return;
    shown.firstChild.setAttribute("href", to);
    shown.firstChild.setAttribute("aria-label", `${value} ${name}, ${period}: show these messages`);
  });
}

// Shows what was counted: each tile is the number of messages in the list behind it.
function showCounts() {
  if (place().tab !== "overview") return;
  const sums = counter.outcomes(organisation);
  const filter = counter.total === null ? {} : counter.filter;
  const to = (more) => address("messages", { ...more, organisation, ...filter });
  const all = Object.values(sums).reduce((sum, one) => sum + one, 0);
  const sent = Object.entries(sums).reduce((sum, [outcome, one]) => sum + (UNSENT.includes(outcome) ? 0 : one), 0);
  const period = `last ${RANGES[range].name}`;
  // Part of a number would look like the number.
  const shown = (number) => (counter.isComplete ? count(number) : "…");
  showTiles(find("range-tiles"), [
    ["accepted", period, shown(all), to({})], ["sent", period, shown(sent), to({ status: "sent" })],
    ...TILES.map((outcome) => [outcome, period, shown(sums[outcome] ?? 0), to({ outcome })]),
  ]);
  find("range-note").textContent = counter.isComplete
    ? `Messages accepted in this range, by their outcome at ${localTime(counter.at).slice(11)}.`
    : `Counting: ${several(counter.total ?? 0, "message")} so far.`;
}

async function readHistory() {
  const mine = ++turn;
  readAt = Date.now();
  try {
    const history = await read(`/page/history?range=${range}`);
    if (mine !== turn || place().tab !== "overview") return;
    showHistory(history);
    countRange();
    find("overview-note").textContent = "";
  } catch (error) {
    report(error, find("overview-note"));
  }
}

function showHistory({ start, step_seconds: step, series: all, organisations }) {
  // An organisation may be called "constructor", a name that every object knows.
  const own = Object.hasOwn(organisations, organisation) ? organisations[organisation] : undefined;
  const counts = organisation === null ? all : own;
  const { ago } = RANGES[range];
  span = start;
  find("range-none").hidden = counts !== undefined;
  find("range-shown").hidden = counts === undefined;
  if (counts === undefined) return;
  const from = Date.parse(start);
  const length = counts.accepted.length;
  const points = Array.from({ length }, (_, index) => ({
    at: from + (index + 1) * step * 1000,
    ...Object.fromEntries(DRAWN.map((name) => [name, counts[name][index]])),
  }));
  const per = STEPS[step] ?? `per ${step} seconds`;
  volume.name(`Messages ${per}`);
  results.name(`Results ${per}`);
  const drawn = { from, until: from + length * step * 1000, ago };
  volume.draw(points, drawn);
  results.draw(points, drawn);
}
