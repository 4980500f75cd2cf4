// The list of messages: a search that looks back by itself until it has a page, and a list that
// stands still while there is more to come.

import { Counter } from "/counts.js";
import { download } from "/csv.js";
import { firstSteps } from "/first_steps.js";
import { ago, cell, count, element, emptyRow, extend, fill, find, keepFocus, labelled, link, localTime, recipients, several } from "/nodes.js";
import { OUTCOMES, outcomeMark } from "/outcomes.js";
import { address, go, goOn, messageAddress } from "/router.js";
import { read, report } from "/session.js";

const COLUMNS = ["accepted", "outcome", "status", "error", "from", "to", "subject", "organisation", "id", "sent", "provider's id"];
// What a filter has, as the service knows it.
const FILTERS = ["search", "organisation", "outcome", "status", "recipient", "sender_domain", "subject", "from", "until"];
const FIELDS = ["organisation", "outcome", "recipient", "sender_domain", "subject"];
const TIMES = ["from", "until"];
// In the field for outcomes: every message that the provider took, whatever came after it.
const ALL_SENT = "status:sent";
// The form of a message's id, which is also that of a request.
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
// So many messages are found before a search rests.
const PAGE = 50;

let filter = {};
let shown = [];
// What is not shown yet, because it came later.
let fresh = [];
let next = null;
// Looking, or at rest.
let isLooking = false;
let looked = { at: 0, since: null };
let turn = 0;
let focus = null;
let lastChanges = null;
let isRefreshing = false;
// Whoever has searched by the one box goes on at what was found.
let isFoundByText = false;

const form = find("search").elements;
const table = find("message-rows");
const counter = new Counter(tell);
form.outcome.append(...Object.keys(OUTCOMES).map((outcome) => element("option", outcome === "sent" ? "sent, no event yet" : outcome, { value: outcome })));
form.outcome.append(element("option", "sent, with or without an event", { value: ALL_SENT }));

find("search").addEventListener("submit", (event) => {
  event.preventDefault();
  begin(filterOfForm());
});
find("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = find("find").elements.text.value.trim();
  // What is found by one text is not narrowed by a filter of before.
  begin(text ? { search: text } : {});
  // The next key is for what was found.
  find("find").elements.text.blur();
  isFoundByText = true;
});
find("clear-search").addEventListener("click", () => begin({}));
find("more-messages").addEventListener("click", () => look(shown.length + PAGE));
find("stop-search").addEventListener("click", stop);
find("new-messages").addEventListener("click", showFresh);
find("messages-csv").addEventListener("click", () => download("messages.csv", [COLUMNS, ...shown.map(csvRow)]));
addEventListener("keydown", (event) => {
  const isWriting = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || isWriting || event.ctrlKey || event.metaKey || event.altKey || find("find").hidden) return;
  event.preventDefault();
  find("find").elements.text.focus();
  find("find").elements.text.select();
});

export function show(place, before) {
  filter = Object.fromEntries(FILTERS.map((name) => [name, place.filter.get(name)]).filter(([, value]) => value));
  if (before?.tab === "message") focus = messageAddress(before.id);
  fillForm();
  search();
  if (isFoundByText) find("messages-title").focus({ preventScroll: true });
  isFoundByText = false;
}

export function hide() {
  stop();
  counter.stop();
}

export function follow(state) {
  showOrganisations(state.organisations.map((one) => one.name));
  const changes = `${state.changes} ${state.queue.messages}`;
  // A call under way ends soon, so what shows one is read again.
  const isOld = changes !== lastChanges || shown.some((message) => message.status === "sending");
  if (isOld && !isLooking && lastChanges !== null) refresh();
  lastChanges = changes;
}

// The same search again looks again.
function begin(wanted) {
  const to = address("messages", wanted);
  if (location.hash === to) search();
  else go(to);
}

function filterOfForm() {
  const found = { search: filter.search };
  for (const name of FIELDS) found[name] = form[name].value.trim();
  // A field has the viewer's own time; an address has the instant, which is the same for everyone.
  for (const name of TIMES) if (form[name].value) found[name] = new Date(form[name].value).toISOString();
  if (found.outcome !== ALL_SENT) return found;
  return { ...found, outcome: null, status: "sent" };
}

function fillForm() {
  for (const name of FIELDS) {
    const value = filter[name] ?? "";
    const field = form[name];
    // A link may name an organisation that is not listed.
    if (name === "organisation" && value && ![...field.options].some((one) => one.value === value)) field.append(element("option", value));
    field.value = value;
  }
  if (filter.status) form.outcome.value = ALL_SENT;
  for (const name of TIMES) form[name].value = filter[name] ? localTime(filter[name]).replace(" ", "T").slice(0, 16) : "";
  find("find").elements.text.value = filter.search ?? "";
  const set = Object.keys(filter).filter((name) => name !== "search").length;
  find("filters").firstElementChild.textContent = set === 0 ? "Filters" : `Filters (${set} set)`;
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

const ask = (before) => read(`/page/messages?${new URLSearchParams(before ? { ...filter, before } : filter)}`);

function search() {
  shown = [];
  fresh = [];
  next = null;
  looked = { at: 0, since: null };
  counter.stop();
  find("first-steps").hidden = true;
  return look(PAGE);
}

// Looks back until there are so many messages, all have been looked at, or somebody stops it.
async function look(wanted) {
  const mine = ++turn;
  isLooking = true;
  if (shown.length === 0) fill(table, [emptyRow(5, "Looking…")]);
  tell();
  try {
    do {
      const page = await ask(next);
      if (mine !== turn) return;
      if (page.exact && page.messages.length === 1 && filter.search) {
        isLooking = false;
        goOn(messageAddress(page.messages[0].id));
        return;
      }
      take(page);
    } while (next && shown.length < wanted);
  } catch (error) {
    if (mine === turn) report(error, find("messages-note"));
    return;
  } finally {
    if (mine === turn) isLooking = false;
  }
  rest();
}

function take(page) {
  if (shown.length === 0 && page.messages.length > 0) table.replaceChildren();
  shown = [...shown, ...page.messages];
  extend(table, page.messages.map(messageRow));
  next = page.next;
  looked = { at: looked.at + (page.looked_at ?? 0), since: page.looked_back_to };
  if (focus) document.querySelector(`#message-rows a[href="${CSS.escape(focus)}"]`)?.focus();
  focus = null;
  tell();
}

function stop() {
  if (!isLooking) return;
  turn += 1;
  isLooking = false;
  rest();
}

// Shows that the search is at rest, and counts what fits.
function rest() {
  const hasFilter = Object.keys(filter).length > 0;
  const none = ID.test(filter.search) ? "No message matches. A refused request creates no message." : "No message matches.";
  if (shown.length === 0) fill(table, [emptyRow(5, next ? "None so far." : hasFilter ? none : "There are no messages yet.")]);
  find("first-steps").hidden = shown.length > 0 || hasFilter;
  if (!find("first-steps").hidden) firstSteps(find("first-steps"));
  if (next && shown.length >= PAGE) counter.count(filter).catch((error) => report(error, find("messages-note")));
  tell();
}

function tell() {
  find("more-messages").hidden = !next || isLooking;
  find("stop-search").hidden = !isLooking;
  find("messages-csv").disabled = shown.length === 0;
  find("new-messages").hidden = fresh.length === 0;
  find("new-messages").textContent = fresh.length < PAGE ? several(fresh.length, "new message") : `${PAGE} or more new messages`;
  const back = next && looked.since ? `, looked back to ${localTime(looked.since)}` : "";
  const progress = isLooking ? ` Searching: ${several(looked.at, "message")} checked.` : "";
  find("messages-note").textContent = `${shownText()}${back}.${progress}`;
}

// Returns how many are shown, and of how many.
function shownText() {
  const { total, isComplete, at } = counter;
  if (!next || total === null || total <= shown.length) return several(shown.length, "message");
  if (!isComplete) return `${count(shown.length)} of more than ${several(total, "message")}, still counting`;
  return `${count(shown.length)} of ${several(total, "message")} at ${localTime(at).slice(11)}`;
}

// Reads the newest again. What is shown stays where it is, with its outcome now; what is new waits.
async function refresh() {
  if (isRefreshing) return;
  isRefreshing = true;
  const mine = turn;
  try {
    const page = await ask(null);
    if (mine !== turn || isLooking || page.exact) return;
    if (shown.length === 0) {
      if (page.messages.length > 0) search();
      return;
    }
    const known = new Map(shown.map((message) => [message.id, message]));
    fresh = page.messages.filter((message) => !known.has(message.id));
    const now = new Map(page.messages.map((message) => [message.id, message]));
    shown = shown.map((message) => now.get(message.id) ?? message);
    for (const message of shown) {
      if (now.has(message.id) && JSON.stringify(message) !== JSON.stringify(known.get(message.id))) redraw(message);
    }
    markOutdated(page, now);
    tell();
  } catch (error) {
    report(error, find("messages-note"));
  } finally {
    isRefreshing = false;
  }
}

function redraw(message) {
  const old = table.querySelector(`[data-id="${message.id}"]`);
  if (old) keepFocus(table, () => old.replaceWith(...labelled(table, [messageRow(message)])));
}

// What the newest page has no more does not fit any more. It stays, and says so.
function markOutdated(page, now) {
  const oldest = page.next ? page.messages.at(-1)?.id : "";
  for (const row of table.querySelectorAll("[data-id]")) {
    const isOutdated = oldest !== undefined && row.dataset.id >= oldest && !now.has(row.dataset.id);
    row.classList.toggle("outdated", isOutdated);
    if (isOutdated) row.title = "This message has changed and no longer matches the filter";
    else row.removeAttribute("title");
  }
}

function showFresh() {
  if (fresh.length >= PAGE) {
    search();
    return;
  }
  shown = [...fresh, ...shown];
  table.prepend(...labelled(table, fresh.map(messageRow)));
  fresh = [];
  tell();
  table.querySelector("a")?.focus();
}

function messageRow(message) {
  const row = element("tr", null, { "data-id": message.id });
  const open = link(message.subject, messageAddress(message.id), { class: "whole" });
  const outcome = cell("outcome", outcomeMark(message.outcome));
  if (message.error) outcome.append(" ", element("span", message.error.code, { class: "faint" }));
  const to = link(recipients(message.to), messageAddress(message.id), { tabindex: "-1", class: "quiet" });
  row.append(cell("time", ago(message.createdAt)), outcome, cell("text second", to), cell("text second", open), cell("nowrap extra", message.organisation));
  return row;
}

const csvRow = (message) => [
  message.createdAt, message.outcome, message.status, message.error?.code, message.from, message.to.join("; "),
  message.subject, message.organisation, message.id, message.sentAt, message.sesMessageId,
];
