// Sender domains with their state, and what SES last said of their DNS records.

import { cell, copied, element, emptyRow, extend, fill, find, link, mark, when } from "/nodes.js";
import { address } from "/router.js";
import { read, report } from "/session.js";

const REFRESH_SECONDS = 10;
const COLUMNS = 6;
const TONES = { verified: "good", assumed: "plain", pending: "warn" };
const SES = {
  verified: "verified: the account may send from it",
  pending: "pending: SES looks for the DNS records",
  temporaryFailure: "SES could not look, and tries again",
  failed: "failed: SES has stopped looking for the DNS records",
  unknown: "unknown: SES has no such identity",
};

let organisation = null;
let next = null;
let isDeep = false;
let readAt = 0;
let shownText = null;

find("more-domains").addEventListener("click", lookFurther);

export function show({ filter }) {
  organisation = filter.get("organisation");
  find("domains-filter").hidden = organisation === null;
  find("domains-of").textContent = organisation ?? "";
  isDeep = false;
  shownText = null;
  refresh();
}

export function follow() {
  if (!isDeep && Date.now() - readAt > REFRESH_SECONDS * 1000) refresh();
}

const ask = (after) => read(`/page/domains?${new URLSearchParams(Object.entries({ organisation, after }).filter(([, value]) => value))}`);

async function refresh() {
  readAt = Date.now();
  const asked = organisation;
  try {
    const page = await ask(null);
    const text = JSON.stringify(page);
    if (isDeep || asked !== organisation || text === shownText) return;
    shownText = text;
    const rows = page.domains.map(row);
    fill(find("domain-rows"), rows.length ? rows : [emptyRow(COLUMNS, "There is no sender domain: pillarbox domain add --org NAME DOMAIN")]);
    tell(page);
  } catch (error) {
    report(error, find("domains-note"));
  }
}

async function lookFurther() {
  isDeep = true;
  try {
    const page = await ask(next);
    extend(find("domain-rows"), page.domains.map(row));
    tell(page);
  } catch (error) {
    report(error, find("domains-note"));
  }
}

function tell(page) {
  next = page.next;
  find("more-domains").hidden = next === null;
  find("domains-note").textContent = "";
}

function row({ domain, organisation: owner, state, since, lastCheck }) {
  const found = element("tr");
  const head = element("th", null, { scope: "row" });
  head.append(link(domain, address("messages", { sender_domain: domain }), { title: "Show its messages" }));
  const said = lastCheck ? [SES[lastCheck.ses] ?? lastCheck.ses, ", asked ", when(lastCheck.at)] : ["not asked"];
  found.append(head, cell("nowrap", owner), cell("", mark(state, TONES[state] ?? "bad")), cell("time", when(since)), cell("text", ...said),
    cell("", ...copied(`pillarbox domain check ${domain}`, `the command that checks ${domain}`)));
  return found;
}
