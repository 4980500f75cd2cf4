// Conditions: what is wrong, the worst first, a line for each kind, which opens to its cases with what
// to do and the messages that are affected.

import { copyButton, count, element, find, link, several } from "/nodes.js";
import { address } from "/router.js";

const TONES = { critical: "bad", warning: "warn", notice: "plain" };
// With so many kinds or more, none is open by itself: the list must leave room for the rest.
const MANY = 5;
// The service lists as many cases, and one more for the rest.
const atMost = (n, most) => (n > most ? `More than ${most}` : n);
// What is said of several cases of a kind.
const SEVERAL = {
  domain_paused: (n) => `${n} domains are paused`,
  organisation_paused: (n) => `All calls for ${n} organisations fail`,
  refusals_held: (n) => `SES refuses messages with the same error text again and again, in ${n} cases`,
  paused_by_operator: (n) => `Operators have paused ${n} organisations`,
  paused_messages_end: (n) => `Messages of ${n} paused organisations fail within an hour`,
  organisation_near_limit: (n) => `${n} limits of organisations are nearly reached`,
  organisation_at_limit: (n) => `${n} limits of organisations are used up`,
  webhook_failing: (n) => `${atMost(n, 20)} endpoints do not accept events`,
  webhook_gone: (n) => `${atMost(n, 20)} endpoints want no more events`,
  bounces: (n) => `${n} organisations have bounces above half of SES's limit`,
  complaints: (n) => `${n} organisations have complaints above half of SES's limit`,
  node_silent: (n) => `${n} nodes give no sign of life`,
  task_failed: (n) => `${n} background tasks failed`,
};

// The line of each kind, by its code, and which of them somebody has opened or closed.
const lines = new Map();
const chosen = new Map();

export function showConditions({ conditions, limits }) {
  const box = find("conditions");
  const kinds = new Map();
  for (const one of conditions) {
    const key = `${one.severity} ${one.code}`;
    kinds.set(key, [...(kinds.get(key) ?? []), one]);
  }
  for (const [key, line] of lines) {
    if (kinds.has(key)) continue;
    line.box.remove();
    lines.delete(key);
  }
  const codes = [...kinds.keys()];
  codes.forEach((key, position) => {
    const all = kinds.get(key);
    const line = lines.get(key) ?? newLine(key, all[0]);
    lines.set(key, line);
    if (box.children[position] !== line.box) box.insertBefore(line.box, box.children[position] ?? null);
    const isOpen = chosen.get(key) ?? (position === 0 && codes.length < MANY && all[0].severity === "critical");
    if (line.box.open !== isOpen) line.box.open = isOpen;
    update(line, all, limits);
  });
  const isFine = conditions.length === 0;
  if (isFine && !box.querySelector(".good")) box.replaceChildren(element("p", "Nothing is wrong: messages are accepted and sent.", { class: "condition good" }));
  if (!isFine) box.querySelector(".good")?.remove();
  // Told only if there is another kind: a screen reader would repeat numbers every second.
  const critical = codes.filter((key) => key.startsWith("critical")).length;
  const told = isFine ? "No problems" : `${several(codes.length, "kind of problem", "kinds of problems")}, ${critical} critical`;
  const names = codes.join();
  if (showConditions.last !== names) find("conditions-told").textContent = told;
  showConditions.last = names;
}

function newLine(key, { severity }) {
  const box = element("details", null, { class: `condition ${TONES[severity]}` });
  const [head, body] = [element("summary"), element("div", null, { class: "cases" })];
  const [text, side] = [element("strong"), element("span", severity, { class: "severity" })];
  head.append(text, side);
  box.append(head, body);
  head.addEventListener("click", () => chosen.set(key, !box.open));
  return { box, text, body, shown: null };
}

// Writes a line again if it has changed. Whoever is at a link or button in it stays there.
function update(line, all, limits) {
  const waiting = all.reduce((sum, one) => sum + (one.affected?.waiting ?? 0), 0);
  const wait = waiting > 0 ? `: ${several(waiting, "message waits", "messages wait")}` : "";
  const [first] = all;
  const told = all.length === 1 ? `${first.message}.` : `${SEVERAL[first.code]?.(count(all.length)) ?? `${first.message}, and ${several(all.length - 1, "other case")}`}${wait}.`;
  if (line.text.textContent !== told) line.text.textContent = told;
  const text = JSON.stringify(all);
  if (line.shown === text || line.body.contains(document.activeElement)) return;
  line.shown = text;
  const more = element("p", null, { class: "why" });
  if (first.code in limits) more.append(explained(limits[first.code]), " ");
  more.append(link("More about this", address("help", {}, first.code), { "aria-label": `More about ${first.code}` }));
  line.body.replaceChildren(...all.map((one) => shownCase(one, all.length > 1)), more);
}

function shownCase({ message, advice, affected }, isOneOfMany) {
  const box = element("div", null, { class: "case" });
  if (isOneOfMany) box.append(element("p", `${message}.`));
  box.append(element("p", `${advice}.`));
  const line = element("p", null, { class: "acts" });
  if (affected && affected.waiting !== 0) {
    const { organisation, domain, outcome, waiting, from } = affected;
    const since = from ? " of the last 24 hours" : "";
    const text = waiting === null ? `Show the ${outcome} messages${since}` : `Show ${several(waiting, "waiting message", "waiting messages")}`;
    line.append(link(text, address("messages", { outcome, organisation, sender_domain: domain, from }), { "aria-label": `${text}${organisation ? ` of ${organisation}` : ""}${domain ? ` from ${domain}` : ""}` }));
  }
  for (const command of commandsIn(advice)) {
    const button = copyButton(command, `the command ${command}`);
    line.append(element("code", command), button);
  }
  if (line.hasChildNodes()) box.append(line);
  return box;
}

// Returns the commands that an advice names. Such a command ends with its sentence or part of one.
export const commandsIn = (advice) => [...advice.matchAll(/pillarbox .+?(?=, |\. |; |\)|\.?$)/g)].map(([command]) => command);

// Says from when on a share of bounces or complaints is a condition.
export function explained({ permille, least }) {
  return `pillarbox warns above ${permille / 20} %, half of SES's ${permille / 10} %, and only if an organisation sent to at least ${count(least)} recipients within 24 hours. With fewer recipients, a rate says little.`;
}
