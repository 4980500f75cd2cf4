// What a simulator in the process was given: that of `dev`, or that of test organisations. A message's HTML is never part of this document: it is one
// of its own, framed without any right (no scripts, no forms, no links that are followed), and the
// service's policy for it lets it load nothing.

import { cell, copied, element, emptyRow, field, fill, find, link, localTime, recipients, when } from "/nodes.js";
import { address, messageAddress } from "/router.js";
import { read, report } from "/session.js";

let id = null;
let total = null;
let focus = null;

// Reads the list again for another organisation.
find("captured-organisation").addEventListener("change", () => list(total));

export function show(place, before) {
  id = place.id;
  total = null;
  find("captured-list").hidden = id !== null;
  find("mail").hidden = id === null;
  // Nothing of a message stays once another place is shown.
  for (const part of ["mail-fields", "mail-views", "mail-body"]) find(part).replaceChildren();
  if (id !== null) open();
  else if (before?.tab === "captured") focus = before.id;
}

// Reads the list again when there is more mail.
export function follow(state) {
  find("captured-none").hidden = state.caught !== null;
  if (state.caught === null || id !== null || state.caught === total) return;
  list(state.caught);
}

async function list(captured) {
  total = captured;
  try {
    const chosen = find("captured-organisation").value;
    const query = chosen ? `?organisation=${encodeURIComponent(chosen)}` : "";
    const { messages, organisations } = await read(`/page/caught${query}`);
    offerOrganisations(organisations, chosen);
    fill(find("captured-rows"), messages.length ? messages.map(row) : [emptyRow(4, "Nothing yet.")]);
    if (focus) find("captured-rows").querySelector(`[data-captured="${CSS.escape(focus)}"]`)?.focus();
    focus = null;
    find("captured-note").textContent = "";
  } catch (error) {
    total = null;
    report(error, find("captured-note"));
  }
}

// Offers the test organisations that mail is kept of, the chosen one always.
function offerOrganisations(names, chosen) {
  const select = find("captured-organisation");
  const all = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  find("captured-choice").hidden = all.length === 0;
  if ([...select.options].slice(1).map((one) => one.value).join() === all.join()) return;
  select.replaceChildren(element("option", "All", { value: "" }), ...all.map((name) => element("option", name, { value: name })));
  select.value = chosen;
}

function row({ id: its, caughtAt, from, to, subject }) {
  const found = element("tr");
  const named = recipients(to.map(decoded));
  const open = link(null, address("captured", {}, its), { class: "whole", "data-captured": its, "aria-label": `${subject}, to ${named}, ${localTime(caughtAt)}` });
  open.append(when(caughtAt));
  found.append(cell("time", open), cell("text", decoded(from)), cell("text second", named), cell("text second", subject));
  return found;
}

async function open() {
  const wanted = id;
  find("mail-title").textContent = "Captured message";
  try {
    const mail = await read(`/page/caught/${encodeURIComponent(wanted)}`);
    if (wanted !== id) return;
    find("mail-title").textContent = mail.subject;
    const all = (addresses) => addresses.map(decoded).join("\n");
    const timeline = mail.message ? link("Timeline of the message", messageAddress(mail.message)) : null;
    find("mail-fields").replaceChildren(
      ...field("Captured", when(mail.caughtAt)), ...field("From", decoded(mail.from)), ...field("To", all(mail.to)), ...field("Cc", all(mail.cc)),
      ...field("Bcc", all(mail.bcc)), ...field("Reply-To", all(mail.replyTo)),
      ...mail.headers.flatMap(([name, value]) => field(name, value)), ...mail.files.flatMap(file),
      ...(mail.organisation ? field("Organisation", mail.organisation) : []), ...field("Provider's id", ...copied(mail.id, "the provider's id")), ...(timeline ? field("Message", timeline) : []));
    offer(mail);
    find("captured-note").textContent = "";
  } catch (error) {
    if (error.status !== 404) return report(error, find("captured-note"));
    find("captured-note").textContent = "This mail is no longer kept. The service keeps only the newest captured mail, in memory, and loses it at a restart.";
  }
}

// Shows the first of the ways to look at a message, with a button for each.
function offer(mail) {
  const { html, text, frame } = mail;
  const framed = (className) => element("iframe", null, { class: className, sandbox: "", referrerpolicy: "no-referrer", title: "The message's HTML", src: frame });
  const views = [];
  if (frame) views.push(["HTML", () => framed("desk")], ["HTML on a phone", () => framed("phone")]);
  if (text !== null) views.push(["Text", () => plain(text, "The message's text")]);
  const links = html === null ? [] : linksOf(html);
  if (links.length > 0) views.push(["Links", () => listed(links)]);
  if (html !== null) views.push(["HTML source", () => plain(html, "The source of the message's HTML")]);
  views.push(["Raw source", () => plain(rawSource(mail), "What pillarbox gave to the provider")]);
  const buttons = views.map(([name, made]) => {
    const button = element("button", name, { type: "button" });
    button.addEventListener("click", () => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
      find("mail-body").replaceChildren(made());
    });
    return button;
  });
  find("mail-views").replaceChildren(...buttons);
  buttons[0].click();
}

// Returns a text with its encoded words (RFC 2047) as people read them.
export function decoded(text) {
  const word = /=\?([^?*\s]+)(?:\*[^?\s]*)?\?([bq])\?([^?\s]*)\?=/gi;
  // Space between two encoded words is no part of the text (section 6.2).
  return text.replace(/(\?=)\s+(?==\?)/g, "$1").replace(word, (whole, charset, encoding, data) => {
    try {
      const bytes = encoding.toLowerCase() === "b" ? atob(data) : data.replaceAll("_", " ").replace(/=([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
      return new TextDecoder(charset).decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)));
    } catch {
      return whole;
    }
  });
}

// Returns the message with every field as the provider was given it, names in their encoded form.
function rawSource({ from, to, cc, bcc, replyTo, subject, headers, text, html, files }) {
  const fields = [["From", from], ["To", to.join(",\n ")], ["Cc", cc.join(",\n ")], ["Bcc", bcc.join(",\n ")], ["Reply-To", replyTo.join(",\n ")], ["Subject", subject], ...headers];
  const head = fields.filter(([, value]) => value !== "").map(([name, value]) => `${name}: ${value}`).join("\n");
  const parts = [["text/plain; charset=UTF-8", text], ["text/html; charset=UTF-8", html], ...files.map((one) => [`${one.mediaType ?? "application/octet-stream"}; name="${one.name}"`, `(${one.size} bytes)`])];
  const bodies = parts.filter(([, body]) => body !== null).map(([type, body]) => `Content-Type: ${type}\n\n${body}`);
  return [head, ...bodies].join("\n\n");
}

// Returns a file as a download: the service never lets a browser show one.
function file({ name, mediaType, contentId, size, download }) {
  const more = [mediaType ?? "no type", `${size} bytes`, ...(contentId === null ? [] : [`cid:${contentId}`])];
  return field("File", link(name, download, { download: name }), ` (${more.join(", ")})`);
}

// Returns where the HTML's links lead, read in a document that is never shown and loads nothing.
function linksOf(html) {
  const anchors = new DOMParser().parseFromString(html, "text/html").querySelectorAll("a[href]");
  const targets = [...anchors].map((anchor) => anchor.getAttribute("href").trim());
  return [...new Set(targets.filter((target) => /^https?:\/\//i.test(target)))];
}

// Lists links, each followed on purpose alone, in a tab that learns nothing of this one.
function listed(targets) {
  const list = element("ul");
  for (const target of targets) {
    const item = element("li");
    item.append(link(target, target, { target: "_blank", rel: "noopener noreferrer" }));
    list.append(item);
  }
  return list;
}

// Returns text that may be long: whoever scrolls by keyboard can reach it.
function plain(text, label) {
  return element("pre", text, { tabindex: "0", role: "region", "aria-label": label });
}
