// One message with its timeline.

import { copied, element, field, find, link, when } from "/nodes.js";
import { OUTCOMES, outcomeMark, outcomeOfEvent } from "/outcomes.js";
import { address } from "/router.js";
import { read, report } from "/session.js";

let id = null;
let shownText = null;
let isSending = false;
let lastChanges = null;
let hasCaptured = false;

export function show(place, before) {
  id = place.id;
  shownText = null;
  find("message-title").textContent = "Message";
  find("message-fields").replaceChildren();
  find("timeline").replaceChildren();
  if (before?.tab === "messages") find("message-back").href = before.address;
  refresh();
}

export function follow(state) {
  hasCaptured = state.caught !== null;
  const changes = `${state.changes} ${state.queue.messages}`;
  if (changes !== lastChanges || shownText === null || isSending) refresh();
  lastChanges = changes;
}

async function refresh() {
  const wanted = id;
  if (wanted === null) return;
  try {
    const message = await read(`/page/messages/${encodeURIComponent(wanted)}`);
    const text = JSON.stringify([message, hasCaptured]);
    if (wanted !== id || text === shownText) return;
    shownText = text;
    draw(message);
    find("message-note").textContent = "";
  } catch (error) {
    report(error, find("message-note"));
  }
}

function draw(message) {
  isSending = message.status === "sending";
  const { sesMessageId, metadata } = message;
  const captured = sesMessageId && hasCaptured ? [" ", link("Captured mail", address("captured", {}, sesMessageId))] : [];
  find("message-title").textContent = message.subject;
  find("message-fields").replaceChildren(
    ...field("Outcome", outcomeMark(message.outcome)),
    ...field("Status", message.status),
    ...field("Id", ...copied(message.id, "the message's id")),
    ...field("Organisation", link(message.organisation, address("messages", { organisation: message.organisation }))),
    ...field("From", message.from),
    ...field("To", message.to.join("\n")),
    ...field("Priority", message.priority),
    ...field("Expires", message.expiresAt && when(message.expiresAt)),
    ...field("Attempts", String(message.attempts)),
    ...field("Error", message.error && `${message.error.code}: ${message.error.message}`),
    ...(sesMessageId ? field("Provider's id", ...copied(sesMessageId, "the provider's id"), ...captured) : []),
    ...field("Metadata", metadata && Object.entries(metadata).map(([name, value]) => `${name}: ${value}`).join("\n")));
  find("timeline").replaceChildren(...entries(message));
}

const STEPS = {
  accepted: "pillarbox accepted it",
  sent: "the provider accepted it",
  restarted: "the service was restarted while it waited",
};

function entries(message) {
  return message.timeline.map((step) => {
    const { at, what, event, attempt, count } = step;
    if (event) {
      const outcome = outcomeOfEvent(event.type);
      const detail = Object.entries(event.detail).map(([name, value]) => `${name}: ${value}`);
      return entry(at, outcome, OUTCOMES[outcome] ?? "plain", event.recipients.join(", "), detail.join("\n"));
    }
    if (count) return entry(null, what, "plain", `attempts that are not kept: ${count}`);
    const word = what === "attempt_failed" ? `attempt ${attempt} failed` : what;
    const tone = OUTCOMES[what] ?? "plain";
    if (!step.code) return entry(at, word, tone, STEPS[what]);
    const code = step.providerCode ? `${step.code} (${step.providerCode})` : step.code;
    const next = step.nextAttemptAt ? `\nnext attempt at ${step.nextAttemptAt}` : "";
    return entry(at, word, tone, code, step.message + next);
  });
}

function entry(at, word, tone, text, detail) {
  const item = element("li", null, { class: tone });
  item.append(at ? when(at) : "", element("strong", word), text ? `: ${text}` : "");
  if (detail) item.append(element("small", detail));
  return item;
}
