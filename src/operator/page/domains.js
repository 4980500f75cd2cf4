// Sender domains with their state, and what SES last said of their DNS records.

import { Listing } from "/listing.js";
import { ago, cell, copied, copyButton, element, emptyRow, field, fill, find, link, mark, when } from "/nodes.js";
import { address } from "/router.js";
import { read, report } from "/session.js";

const TONES = { verified: "good", assumed: "plain", pending: "warn" };
const SES = {
  verified: "verified: the account may send from it",
  pending: "pending: SES is looking for the DNS records",
  temporaryFailure: "SES could not check the records and tries again",
  failed: "failed: SES has stopped looking for the DNS records",
  unknown: "unknown: SES has no such identity",
};

const PRESENCE = { found: ["found", "good"], missing: ["missing", "bad"], notLookedFor: ["not looked for", "plain"] };

let organisation = null;
let name = null;

const listing = new Listing("domains", {
  rows: "domain-rows",
  ask: (after) => read(`/page/domains?${new URLSearchParams(Object.entries({ organisation, after }).filter(([, value]) => value))}`),
  row,
  empty: "There is no sender domain. Add one: pillarbox domain add --org NAME DOMAIN",
});

export function show({ id, filter }) {
  name = id;
  find("domains-list").hidden = name !== null;
  find("domain").hidden = name === null;
  find("domains").dataset.title = name ?? "Domains";
  if (name !== null) return open(name);
  organisation = filter.get("organisation");
  find("domains-filter").hidden = organisation === null;
  find("domains-of").textContent = organisation ?? "";
  return listing.show();
}

export function follow() {
  if (name === null) listing.follow();
}

// Asks SES for the domain's records. They are asked for once, because SES answers few such questions.
async function open(wanted) {
  find("domain-title").textContent = wanted;
  find("domain-fields").replaceChildren(
    ...field("Messages", link(`Show the messages from ${wanted}`, address("messages", { sender_domain: wanted }))),
    ...field("Check it", ...copied(`pillarbox domain check ${wanted}`, "the command that checks the domain")));
  find("domain-records").hidden = true;
  find("domain-note").textContent = "Asking SES…";
  try {
    const { ses, reason, dkim, mailFrom, domains, dnsRecords } = await read(`/page/domains/${encodeURIComponent(wanted)}`);
    if (wanted !== name) return;
    find("domain-note").textContent = "";
    find("domain-fields").prepend(
      ...domains.flatMap(({ organisation: owner, state, since }) => field(owner, mark(state, TONES[state] ?? "bad"), " since ", when(since))),
      ...field("SES says", SES[ses] ?? ses, reason ? ` (${reason})` : ""), ...field("DKIM", dkim),
      ...(mailFrom ? field("MAIL FROM", `${mailFrom.domain}: ${mailFrom.setup}`) : []));
    find("domain-records").hidden = false;
    fill(find("record-rows"), dnsRecords.length ? dnsRecords.map(recordRow) : [emptyRow(5, "SES has no such identity: pillarbox domain add creates it and prints its records.")]);
  } catch (error) {
    if (wanted === name) report(error, find("domain-note"));
  }
}

function recordRow({ type, name: of, value, purpose, ses, zoneLine }) {
  const found = element("tr");
  const all = copyButton(zoneLine, `of ${of}`, "Copy zone line");
  const shown = mark(...(PRESENCE[ses] ?? [ses, "plain"]));
  found.append(cell("nowrap", type), cell("text", ...copied(of, `the name ${of}`)), cell("text", ...copied(value, `the value of ${of}`)), cell("", `${purpose}: `, shown), cell("nowrap", all));
  return found;
}

function row({ domain, organisation: owner, state, since, lastCheck }) {
  const found = element("tr");
  const head = element("th", null, { scope: "row" });
  head.append(link(domain, address("domains", {}, domain), { title: "Show its DNS records" }));
  const said = lastCheck ? [SES[lastCheck.ses] ?? lastCheck.ses, ", asked ", ago(lastCheck.at)] : ["not asked"];
  found.append(head, cell("nowrap", owner), cell("", mark(state, TONES[state] ?? "bad")), cell("time", ago(since)), cell("text", ...said),
    cell("", ...copied(`pillarbox domain check ${domain}`, `the command that checks ${domain}`)));
  return found;
}
