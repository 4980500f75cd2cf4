// Set-aside documents (dead letters): what the provider wrote and the service could not read in full.

import { Listing } from "/listing.js";
import { ago, cell, copied, count, element, field, find, link, several, when } from "/nodes.js";
import { address } from "/router.js";
import { read, report } from "/session.js";

let id = null;

const listing = new Listing("documents", {
  rows: "document-rows",
  ask: async () => ({ documents: (await read("/page/documents")).deadLetters }),
  row,
  empty: "No document is set aside.",
  told: (items) => `${several(items.length, "document")}.`,
});

export function show(place) {
  id = place.id;
  find("documents-list").hidden = id !== null;
  find("document").hidden = id === null;
  if (id === null) return listing.show();
  find("document-fields").replaceChildren();
  find("document-text").textContent = "";
  return open(id);
}

export function follow() {
  if (id === null) listing.follow();
}

function row(one) {
  const found = element("tr");
  const head = element("th", null, { scope: "row" });
  head.append(link(one.id.slice(0, 12), address("documents", {}, one.id), { class: "whole", "aria-label": `Document ${one.id.slice(0, 12)}` }));
  found.append(head, cell("time", ago(one.receivedAt)), cell("text", one.reason), cell("number", `${count(one.length)} bytes`));
  return found;
}

async function open(wanted) {
  try {
    const letter = await read(`/page/documents/${encodeURIComponent(wanted)}`);
    if (wanted !== id) return;
    find("document-title").textContent = `Document ${letter.id.slice(0, 12)}`;
    find("document-fields").replaceChildren(
      ...field("Id", ...copied(letter.id, "the document's id")), ...field("Received", when(letter.receivedAt)), ...field("Why it was set aside", letter.reason),
      ...field("Length", `${count(letter.length)} bytes`), ...field("What to do", "If it is a bounce or a complaint, suppress its recipients by hand. If it names a test organisation, find out what else sends with that name. Then delete it"),
      ...field("Delete it", ...copied(`pillarbox dead-letter clear ${letter.id}`, "the command that deletes the document")));
    find("document-text").textContent = letter.document;
    find("documents-note").textContent = "";
  } catch (error) {
    report(error, find("documents-note"));
  }
}
