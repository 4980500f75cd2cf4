// The list of messages: a search that looks a bounded way back at a time, and follows what happens.

import { download } from "/csv.js";
import { cell, element, emptyRow, extend, fill, find, link, localTime, recipients, when } from "/nodes.js";
import { OUTCOMES, outcomeMark } from "/outcomes.js";
import { address, go, messageAddress } from "/router.js";
import { read, report } from "/session.js";

const COLUMNS = ["accepted", "outcome", "status", "error", "from", "to", "subject", "organisation", "id", "sent", "provider's id"];
// What a filter has, as the service knows it.
const FILTERS = ["organisation", "outcome", "status", "recipient", "sender_domain", "subject", "from", "until"];
const TIMES = ["from", "until"];
// In the field for outcomes: every message that the provider took, whatever came after it.
const ALL_SENT = "status:sent";

let filter = {};
let shown = [];
let next = null;
let isDeep = false;
let turn = 0;
let focus = null;
let lastChanges = null;

const form = find("search").elements;
form.outcome.append(...Object.keys(OUTCOMES).map((outcome) => element("option", outcome === "sent" ? "sent, no event yet" : outcome, { value: outcome })));
form.outcome.append(element("option", "sent, with any event", { value: ALL_SENT }));

find("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = form.id.value.trim();
  const wanted = id ? messageAddress(id) : address("messages", filterOfForm());
  form.id.value = "";
  // The same search again looks again.
  if (location.hash === wanted) search();
  else go(wanted);
});
find("clear-search").addEventListener("click", () => go(address("messages")));
find("more-messages").addEventListener("click", lookFurther);
find("messages-csv").addEventListener("click", () => download("messages.csv", [COLUMNS, ...shown.map(csvRow)]));

export function show(place, before) {
  filter = Object.fromEntries(FILTERS.map((name) => [name, place.filter.get(name)]).filter(([, value]) => value));
  if (before?.tab === "message") focus = messageAddress(before.id);
  fillForm();
  search();
}

// The newest rows follow what happens, unless somebody has looked further back. A call under way
// ends soon, so what shows one is read again.
export function follow(state) {
  showOrganisations(state.organisations.map((one) => one.name));
  const changes = `${state.changes} ${state.queue.messages}`;
  const isOld = changes !== lastChanges || shown.some((message) => message.status === "sending");
  if (isOld && !isDeep && lastChanges !== null) search();
  lastChanges = changes;
}

function filterOfForm() {
  const found = {};
  for (const name of ["organisation", "outcome", "recipient", "sender_domain", "subject"]) found[name] = form[name].value.trim();
  // A field has the viewer's own time; an address has the instant, which is the same for everyone.
  for (const name of TIMES) if (form[name].value) found[name] = new Date(form[name].value).toISOString();
  if (found.outcome !== ALL_SENT) return found;
  return { ...found, outcome: null, status: "sent" };
}

function fillForm() {
  for (const name of ["organisation", "outcome", "recipient", "sender_domain", "subject"]) {
    const value = filter[name] ?? "";
    const field = form[name];
    // A link may name an organisation that is not listed.
    if (name === "organisation" && value && ![...field.options].some((one) => one.value === value)) field.append(element("option", value));
    field.value = value;
  }
  if (filter.status) form.outcome.value = ALL_SENT;
  for (const name of TIMES) form[name].value = filter[name] ? localTime(filter[name]).replace(" ", "T").slice(0, 16) : "";
}

function showOrganisations(names) {
  const all = names.join("\n");
  if (showOrganisations.last === all) return;
  showOrganisations.last = all;
  const chosen = form.organisation.value;
  form.organisation.replaceChildren(element("option", "All", { value: "" }), ...names.map((name) => element("option", name)));
  if (chosen && !names.includes(chosen)) form.organisation.append(element("option", chosen));
  form.organisation.value = chosen;
}

async function ask(before) {
  const mine = ++turn;
  const query = new URLSearchParams(filter);
  if (before) query.set("before", before);
  const page = await read(`/page/messages?${query}`);
  return mine === turn ? page : null;
}

async function search() {
  isDeep = false;
  try {
    const page = await ask(null);
    if (page === null) return;
    shown = page.messages;
    const none = Object.keys(filter).length === 0 ? "There are no messages yet." : page.next ? "None so far." : "No message fits.";
    fill(find("message-rows"), shown.length ? shown.map(messageRow) : [emptyRow(5, none)]);
    tell(page);
    if (focus) document.querySelector(`#message-rows a[href="${CSS.escape(focus)}"]`)?.focus();
    focus = null;
  } catch (error) {
    report(error, find("messages-note"));
  }
}

async function lookFurther() {
  isDeep = true;
  try {
    const page = await ask(next);
    if (page === null) return;
    if (shown.length === 0) find("message-rows").replaceChildren();
    shown = [...shown, ...page.messages];
    extend(find("message-rows"), shown.length ? page.messages.map(messageRow) : [emptyRow(5, page.next ? "None so far." : "No message fits.")]);
    tell(page);
  } catch (error) {
    report(error, find("messages-note"));
  }
}

function tell(page) {
  next = page.next;
  find("more-messages").hidden = !next;
  find("messages-csv").disabled = shown.length === 0;
  const parts = [shown.length === 1 ? "1 message" : `${shown.length} messages`];
  if (next && page.looked_back_to) parts.push(`looked back to ${localTime(page.looked_back_to)}`);
  find("messages-note").textContent = `${parts.join(", ")}.`;
}

function messageRow(message) {
  const row = element("tr", null, { "data-id": message.id });
  const open = link(null, messageAddress(message.id), { class: "whole", "aria-label": `${message.outcome}: ${message.subject}, to ${recipients(message.to)}, ${localTime(message.createdAt)}` });
  open.append(when(message.createdAt));
  const outcome = cell("outcome", outcomeMark(message.outcome));
  if (message.error) outcome.append(" ", element("span", message.error.code, { class: "faint" }));
  row.append(cell("time", open), outcome, cell("text second", recipients(message.to)), cell("text second", message.subject), cell("nowrap extra", message.organisation));
  return row;
}

const csvRow = (message) => [
  message.createdAt, message.outcome, message.status, message.error?.code, message.from, message.to.join("; "),
  message.subject, message.organisation, message.id, message.sentAt, message.sesMessageId,
];
