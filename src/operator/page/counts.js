// Counts of messages as they stand: the service looks through the records, some thousand at a time.
// So a number is always that of the list behind it.

import { read } from "/session.js";

export class Counter {
  // `told()` is called after each part. `total` is null before the first.
  constructor(told) {
    Object.assign(this, { told, turn: 0, total: null, isComplete: false, at: null, millis: 0, counts: {}, filter: {} });
  }

  stop() {
    this.turn += 1;
    this.total = null;
    this.isComplete = false;
  }

  // Counts what a filter finds, by organisation and outcome. What was counted before stays until
  // there is all of it, if `isQuiet`.
  async count(filter, isQuiet = false) {
    const mine = ++this.turn;
    if (!isQuiet) Object.assign(this, { total: null, isComplete: false, counts: {} });
    const began = performance.now();
    const [at, counts] = [Date.now(), {}];
    let [total, before] = [0, null];
    do {
      const page = await read(`/page/counts?${new URLSearchParams(before ? { ...filter, before } : filter)}`);
      if (mine !== this.turn) return;
      for (const [organisation, outcomes] of Object.entries(page.counts)) {
        const own = (counts[`=${organisation}`] ??= {});
        for (const [outcome, value] of Object.entries(outcomes)) {
          own[outcome] = (own[outcome] ?? 0) + value;
          total += value;
        }
      }
      before = page.next;
      const isComplete = !before;
      if (isComplete || !isQuiet) Object.assign(this, { filter, total, counts, at, isComplete, millis: performance.now() - began });
      this.told();
    } while (before);
  }

  // Returns the sums of outcomes, of one organisation if it is named. A name is marked, because an
  // organisation may be called "constructor", which every object knows.
  outcomes(organisation = null) {
    const parts = organisation === null ? Object.values(this.counts) : [this.counts[`=${organisation}`] ?? {}];
    const sums = {};
    for (const part of parts) for (const [outcome, value] of Object.entries(part)) sums[outcome] = (sums[outcome] ?? 0) + value;
    return sums;
  }
}
