// Addresses to which pillarbox sends nothing, the newest first. The service has them by address, so all of
// them are read before the first is known; what is found meanwhile is shown.

import { download } from "/csv.js";
import { ago, cell, count, element, emptyRow, fill, find, link, several } from "/nodes.js";
import { address, go, messageAddress } from "/router.js";
import { read, report } from "/session.js";

// So many are shown and saved: the newest.
const SHOWN = 500;
const REFRESH_MILLIS = 10_000;

let search = "";
let newest = [];
let total = 0;
let isReading = false;
let isWhole = false;
let pages = 0;
let readAt = 0;
let turn = 0;
let shownText = null;

find("suppressions-find").addEventListener("submit", (event) => {
  event.preventDefault();
  go(address("suppressions", { search: find("suppressions-find").elements.text.value.trim() }));
});
find("stop-suppressions").addEventListener("click", () => {
  turn += 1;
  isReading = false;
  tell();
});
find("suppressions-csv").addEventListener("click", () => download("suppressions.csv", [
  // The columns that `pillarbox suppression import` reads; * stands for all organisations.
  ["address", "reason", "since", "organisation", "message"],
  ...newest.map((one) => [one.address, one.reason, one.since, one.organisation ?? "*", one.message]),
]));

export function show({ filter }) {
  search = filter.get("search") ?? "";
  find("suppressions-find").elements.text.value = search;
  shownText = null;
  return readAll();
}

export function hide() {
  turn += 1;
  isReading = false;
}

// A long list is not read again by itself.
export function follow() {
  if (!isReading && isWhole && pages === 1 && Date.now() - readAt > REFRESH_MILLIS) readAll();
}

async function readAll() {
  const mine = ++turn;
  let [found, next] = [[], null];
  [isReading, isWhole, pages, total] = [true, false, 0, 0];
  try {
    do {
      const page = await read(`/page/suppressions?${query(next)}`);
      if (mine !== turn) return;
      pages += 1;
      total += page.suppressions.length;
      next = page.next;
      found = [...found, ...page.suppressions].sort((a, b) => (a.since < b.since ? 1 : a.since > b.since ? -1 : 0)).slice(0, SHOWN);
      // One short list takes the place of another at once.
      if (next === null || pages > 1) draw(found);
    } while (next !== null);
    isWhole = true;
  } catch (error) {
    if (mine === turn) report(error, find("suppressions-note"));
    return;
  } finally {
    if (mine === turn) [isReading, readAt] = [false, Date.now()];
  }
  tell();
}

function query(next) {
  const parts = new URLSearchParams(search ? { search } : {});
  if (next !== null) parts.set("address", next.address);
  if (next !== null && next.organisation !== null) parts.set("organisation", next.organisation);
  return parts;
}

function draw(found) {
  newest = found;
  const text = JSON.stringify(newest);
  if (text !== shownText) fill(find("suppression-rows"), newest.length ? newest.map(row) : [emptyRow(5, search ? "No suppression matches." : "No address is suppressed.")]);
  shownText = text;
  tell();
}

function tell() {
  find("suppressions-csv").disabled = newest.length === 0;
  find("stop-suppressions").hidden = !isReading || pages < 2;
  const all = several(total, "suppression");
  find("suppressions-note").textContent = `${total > newest.length ? `${count(newest.length)} of ${all}` : all}${isWhole ? "" : " so far"}.`;
}

function row(one) {
  const found = element("tr");
  const message = one.message ? link(`…${one.message.slice(-8)}`, messageAddress(one.message), { class: "whole", "aria-label": `…${one.message.slice(-8)}, the message that suppressed ${one.address}` }) : "";
  found.append(cell("text", one.address), cell("nowrap second short", one.reason), cell("nowrap second short", one.organisation ?? "(all)"), cell("time second", one.since ? ago(one.since) : ""), cell("nowrap second", message));
  return found;
}
