// API keys: whose they are, what each may do, and when it was last used. The keys themselves are not stored.

import { Listing } from "/listing.js";
import { ago, cell, copyButton, element, find, link, mark, several, when } from "/nodes.js";
import { address } from "/router.js";
import { read } from "/session.js";

let organisation = null;

const listing = new Listing("keys", {
  rows: "key-rows",
  ask: () => read(`/page/keys?${new URLSearchParams(organisation ? { organisation } : {})}`),
  row,
  empty: "There is no API key. Create one: pillarbox key add --org NAME",
  told: (items) => `${several(items.length, "key")}.`,
});

export function show({ filter }) {
  organisation = filter.get("organisation");
  find("keys-filter").hidden = organisation === null;
  find("keys-of").textContent = organisation ?? "";
  return listing.show();
}

export const follow = () => listing.follow();

function row(key) {
  const found = element("tr");
  const head = element("th", `${key.id} ${key.label}`, { scope: "row" });
  const terms = [key.priority === "high" ? "priority high" : null, key.messageExpiresIn ? `messages expire after ${key.messageExpiresIn}` : null].filter(Boolean);
  const isOver = key.expiresAt && Date.parse(key.expiresAt) < Date.now();
  const revoke = copyButton(`pillarbox key revoke ${key.id}`, `that revokes key ${key.id}`, "Copy command");
  found.append(
    head, cell("nowrap", link(key.organisation, address("keys", { organisation: key.organisation }))), cell("text", key.scopes.join(", ")),
    cell("text", key.domains.length > 0 ? key.domains.join(", ") : "all domains of the organisation"), cell("text", terms.join("; ") || "–"),
    cell("time", key.lastUsedAt ? ago(key.lastUsedAt) : "never used"),
    cell("time", ...(isOver ? [mark("expired", "bad"), " "] : []), key.expiresAt ? when(key.expiresAt) : "never"), cell("nowrap", revoke));
  return found;
}
