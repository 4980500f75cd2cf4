// Addresses to which nothing is sent.

import { download } from "/csv.js";
import { Listing } from "/listing.js";
import { cell, element, find, link, when } from "/nodes.js";
import { messageAddress } from "/router.js";
import { read } from "/session.js";

const listing = new Listing("suppressions", { rows: "suppression-rows", ask, row, empty: "No address is suppressed.", told });

find("suppressions-csv").addEventListener("click", () => download("suppressions.csv", [
  // The columns that `pillarbox suppression import` reads; * stands for all organisations.
  ["address", "reason", "since", "organisation", "message"],
  ...listing.items.map((one) => [one.address, one.reason, one.since, one.organisation ?? "*", one.message]),
]));

export const show = () => listing.show();
export const follow = () => listing.follow();

function ask(next) {
  if (next === null) return read("/page/suppressions");
  const query = new URLSearchParams({ address: next.address });
  if (next.organisation !== null) query.set("organisation", next.organisation);
  return read(`/page/suppressions?${query}`);
}

function told(items, next) {
  find("suppressions-csv").disabled = items.length === 0;
  return `${items.length === 1 ? "1 suppression" : `${items.length} suppressions`}${next ? " so far" : ""}.`;
}

function row(one) {
  const found = element("tr");
  const message = one.message ? link(`${one.message.slice(0, 8)}…`, messageAddress(one.message), { class: "whole", "aria-label": `${one.message.slice(0, 8)}…, the message that suppressed ${one.address}` }) : "";
  found.append(cell("text", one.address), cell("nowrap second short", one.reason), cell("nowrap second short", one.organisation ?? "(all)"), cell("time second", one.since ? when(one.since) : ""), cell("nowrap second", message));
  return found;
}
