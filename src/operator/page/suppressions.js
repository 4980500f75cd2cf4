// Addresses to which nothing is sent.

import { download } from "/csv.js";
import { cell, element, emptyRow, extend, fill, find, link, when } from "/nodes.js";
import { messageAddress } from "/router.js";
import { read, report } from "/session.js";

const REFRESH_SECONDS = 10;

let shown = [];
let next = null;
let isDeep = false;
let readAt = 0;

find("more-suppressions").addEventListener("click", lookFurther);
find("suppressions-csv").addEventListener("click", () => download("suppressions.csv", [
  // The columns that `pillarbox suppression import` reads; * stands for all organisations.
  ["address", "reason", "since", "organisation", "message"],
  ...shown.map((one) => [one.address, one.reason, one.since, one.organisation ?? "*", one.message]),
]));

export function show() {
  isDeep = false;
  refresh();
}

export function follow() {
  if (!isDeep && Date.now() - readAt > REFRESH_SECONDS * 1000) refresh();
}

async function refresh() {
  readAt = Date.now();
  try {
    const page = await read("/page/suppressions");
    if (isDeep) return;
    shown = page.suppressions;
    fill(find("suppression-rows"), shown.length ? shown.map(row) : [emptyRow(5, "No address is suppressed.")]);
    tell(page);
  } catch (error) {
    report(error, find("suppressions-note"));
  }
}

async function lookFurther() {
  isDeep = true;
  try {
    const query = new URLSearchParams({ address: next.address });
    if (next.organisation !== null) query.set("organisation", next.organisation);
    const page = await read(`/page/suppressions?${query}`);
    shown = [...shown, ...page.suppressions];
    extend(find("suppression-rows"), page.suppressions.map(row));
    tell(page);
  } catch (error) {
    report(error, find("suppressions-note"));
  }
}

function tell(page) {
  next = page.next;
  find("more-suppressions").hidden = !next;
  find("suppressions-csv").disabled = shown.length === 0;
  find("suppressions-note").textContent = `${shown.length === 1 ? "1 suppression" : `${shown.length} suppressions`}${next ? " so far" : ""}.`;
}

function row(one) {
  const found = element("tr");
  const message = one.message ? link(`${one.message.slice(0, 8)}…`, messageAddress(one.message), { class: "whole", "aria-label": `${one.message.slice(0, 8)}…, the message that suppressed ${one.address}` }) : "";
  found.append(cell("text", one.address), cell("nowrap second short", one.reason), cell("nowrap second short", one.organisation ?? "(all)"), cell("time second", one.since ? when(one.since) : ""), cell("nowrap second", message));
  return found;
}
