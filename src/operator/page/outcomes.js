// The outcome of a message: its status, or after `sent` its latest event.

import { mark } from "/nodes.js";

// The tone of each outcome, in the order in which a filter offers them.
export const OUTCOMES = {
  queued: "open", sending: "open", sent: "plain", delivered: "good", delayed: "warn",
  bounced: "bad", complained: "bad", rejected: "bad", failed: "bad", suppressed: "warn",
};
const EVENTS = { delivery: "delivered", bounce: "bounced", complaint: "complained", delivery_delay: "delayed", reject: "rejected" };

// Returns the outcome that an event makes.
export const outcomeOfEvent = (type) => EVENTS[type] ?? type;

export const outcomeMark = (outcome) => mark(outcome, OUTCOMES[outcome] ?? "plain");
