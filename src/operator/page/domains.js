// Sender domains with their state, and what SES last said of their DNS records.

import { Listing } from "/listing.js";
import { cell, copied, element, find, link, mark, when } from "/nodes.js";
import { address } from "/router.js";
import { read } from "/session.js";

const TONES = { verified: "good", assumed: "plain", pending: "warn" };
const SES = {
  verified: "verified: the account may send from it",
  pending: "pending: SES looks for the DNS records",
  temporaryFailure: "SES could not look, and tries again",
  failed: "failed: SES has stopped looking for the DNS records",
  unknown: "unknown: SES has no such identity",
};

let organisation = null;

const listing = new Listing("domains", {
  rows: "domain-rows",
  ask: (after) => read(`/page/domains?${new URLSearchParams(Object.entries({ organisation, after }).filter(([, value]) => value))}`),
  row,
  empty: "There is no sender domain: pillarbox domain add --org NAME DOMAIN",
});

export function show({ filter }) {
  organisation = filter.get("organisation");
  find("domains-filter").hidden = organisation === null;
  find("domains-of").textContent = organisation ?? "";
  listing.show();
}

export const follow = () => listing.follow();

function row({ domain, organisation: owner, state, since, lastCheck }) {
  const found = element("tr");
  const head = element("th", null, { scope: "row" });
  head.append(link(domain, address("messages", { sender_domain: domain }), { title: "Show its messages" }));
  const said = lastCheck ? [SES[lastCheck.ses] ?? lastCheck.ses, ", asked ", when(lastCheck.at)] : ["not asked"];
  found.append(head, cell("nowrap", owner), cell("", mark(state, TONES[state] ?? "bad")), cell("time", when(since)), cell("text", ...said),
    cell("", ...copied(`pillarbox domain check ${domain}`, `the command that checks ${domain}`)));
  return found;
}
