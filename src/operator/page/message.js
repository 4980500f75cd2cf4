// One message with its timeline: every step with its cause, what to do, and where to look further.

import { ago, copied, copyButton, element, field, find, link, when } from "/nodes.js";
import { OUTCOMES, outcomeMark, outcomeOfEvent } from "/outcomes.js";
import { address, leadsOn } from "/router.js";
import { read, report } from "/session.js";
import { DELIVERY_TONES } from "/webhooks.js";

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
  find("message").dataset.title = "Message";
  if (before?.tab === "messages") find("message-back").href = leadsOn(before.address) ? "#/messages" : before.address;
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
  const { sesMessageId, metadata, idempotencyKey } = message;
  const captured = sesMessageId && hasCaptured ? [" ", link("Captured mail", address("captured", {}, sesMessageId))] : [];
  find("message-title").textContent = message.subject;
  find("message").dataset.title = message.subject;
  find("message-fields").replaceChildren(
    ...field("Outcome", outcomeMark(message.outcome)),
    ...field("Status", message.status),
    ...field("Id", ...copied(message.id, "the message's id"), " ", commandButton(message.id)),
    ...field("Organisation", link(message.organisation, address("messages", { organisation: message.organisation }))),
    ...field("From", message.from),
    ...field("To", ...message.to.flatMap((to, index) => [index > 0 ? "\n" : "", link(to, address("messages", { recipient: addressIn(to) }), { title: "Show all messages to this address" })])),
    ...message.suppressions.flatMap(suppression),
    ...field("Priority", message.priority),
    ...field("Expires", message.expiresAt && when(message.expiresAt)),
    ...field("Attempts", String(message.attempts)),
    ...field("Error", message.error && `${message.error.code}: ${message.error.message}`),
    ...(sesMessageId ? field("Provider's id", ...copied(sesMessageId, "the provider's id"), ...captured) : []),
    ...(idempotencyKey ? field("Idempotency key", ...copied(idempotencyKey, "the idempotency key")) : []),
    ...field("Metadata", ...Object.entries(metadata ?? {}).flatMap(([name, value], index) => [index > 0 ? "\n" : "", link(`${name}: ${value}`, address("messages", { search: `${name}:${value}` }), { title: "Show all messages with this metadata" })])));
  find("timeline").replaceChildren(...entries(message));
  // The title is known only now.
  dispatchEvent(new Event("titled"));
}

const addressIn = (mailbox) => /<([^<>]+)>\s*$/.exec(mailbox)?.[1] ?? mailbox;

// Offers the command that shows the same in a terminal.
function commandButton(of) {
  return copyButton(`pillarbox message show ${of}`, "that shows this message", "Copy command");
}

function suppression({ address: suppressed, organisation, reason, since }) {
  const to = link(suppressed, address("suppressions", { search: suppressed }));
  return field("Suppressed", to, ` for ${organisation ?? "all organisations"}, since `, when(since), ` (${reason})`);
}

const STEPS = {
  accepted: "pillarbox accepted it",
  sent: "the provider accepted it",
  restarted: "the service restarted while the message waited",
};

function entries(message) {
  return message.timeline.map((step, index) => {
    const { at, what, event, attempt, count } = step;
    const more = [...explained(message.explanations[index]), ...deliveries(message, what)];
    if (event) {
      const outcome = outcomeOfEvent(event.type);
      const detail = Object.entries(event.detail).map(([name, value]) => `${name}: ${value}`);
      return entry(at, outcome, OUTCOMES[outcome] ?? "plain", event.recipients.join(", "), detail, more);
    }
    if (count) return entry(null, what, "plain", `attempts that pillarbox did not keep: ${count}`, [], more);
    const word = what === "attempt_failed" ? `attempt ${attempt} failed` : what;
    const tone = what === "attempt_failed" ? "warn" : OUTCOMES[what] ?? "plain";
    const said = what === "sent" && attempt > 1 ? `the provider accepted it at attempt ${attempt}` : STEPS[what];
    if (!step.code) return entry(at, word, tone, said, [], more);
    const code = step.providerCode ? `${step.code} (${step.providerCode})` : step.code;
    return entry(at, word, tone, code, [step.message, step.nextAttemptAt && nextAttempt(step.nextAttemptAt)], more);
  });
}

function nextAttempt(at) {
  const told = element("span", "Next attempt: ");
  told.append(when(at));
  return told;
}

// Says why a step came about and what to do, with a link to all that there is to know.
function explained(explanation) {
  if (!explanation) return [];
  const { topic, cause, advice } = explanation;
  const why = element("small", null, { class: "why" });
  why.append(element("b", "Why: "), `${cause}. `, element("b", "What to do: "), `${advice}. `, link("More", address("help", {}, topic), { "aria-label": `More about ${topic}` }));
  return [why];
}

// Says what became of the step's event at endpoints.
function deliveries(message, what) {
  const own = message.deliveries.filter((one) => one.type === `email.${what}`);
  // Of each endpoint and event, the last attempt says it.
  const last = new Map(own.map((one) => [`${one.webhook} ${one.event}`, one]));
  return [...last.values()].map((one) => {
    const told = element("small", "Webhook: ");
    told.append(link(`endpoint ${one.webhook}`, address("webhooks", {}, String(one.webhook))), " ", element("b", one.state, { class: DELIVERY_TONES[one.state] }), ` (${one.answer}, attempt ${one.attempt})`);
    return told;
  });
}

function entry(at, word, tone, text, details, more) {
  const item = element("li", null, { class: tone });
  item.append(at ? when(at) : "", element("strong", word), text ? `: ${text}` : "");
  if (at) item.append(" ", ago(at));
  for (const detail of details) {
    if (!detail) continue;
    const line = element("small");
    line.append(detail);
    item.append(line);
  }
  item.append(...more);
  return item;
}
