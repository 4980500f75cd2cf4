// A table of a tab that is read again every few seconds, until somebody looks further down.

import { emptyRow, extend, fill, find } from "/nodes.js";
import { report } from "/session.js";

export class Listing {
  // `name` is that of the tab and of a page's items. `rows` names the table's body. `ask(next)`
  // reads a page, the first if `next` is null. `row(item)` makes a row of it, also of what
  // `beside()` gives. `empty` says that there is nothing, and `told(items, next)` what is shown. What
  // has one page alone needs no button for more.
  constructor(name, { rows, ask, row, empty, beside = () => null, told = () => "", refreshSeconds = 10 }) {
    Object.assign(this, { name, ask, row, empty, beside, told, refreshSeconds, items: [], next: null, isDeep: false, turn: 0, readAt: 0, shownText: null });
    this.rows = find(rows);
    this.note = find(`${name}-note`);
    this.more = find(`more-${name}`);
    this.more?.addEventListener("click", () => this.lookFurther());
  }

  show() {
    this.turn += 1;
    this.isDeep = false;
    this.shownText = null;
    return this.refresh();
  }

  follow() {
    if (!this.isDeep && Date.now() - this.readAt > this.refreshSeconds * 1000) this.refresh();
  }

  async refresh() {
    this.readAt = Date.now();
    const { turn } = this;
    await this.read(null, (page) => {
      if (this.isDeep || turn !== this.turn) return;
      this.items = page[this.name];
      const text = JSON.stringify([page, this.beside()]);
      if (text !== this.shownText) {
        fill(this.rows, this.items.length ? this.items.map(this.row) : [this.emptyRow()]);
        this.shownText = text;
      }
      this.tell(page);
    });
  }

  // Draws the items again, with what is beside them now.
  redraw() {
    if (this.shownText === null || this.isDeep) return;
    fill(this.rows, this.items.length ? this.items.map(this.row) : [this.emptyRow()]);
  }

  emptyRow() {
    return emptyRow(this.rows.closest("table").querySelectorAll("thead th").length, this.empty);
  }

  async lookFurther() {
    this.isDeep = true;
    const { turn } = this;
    await this.read(this.next, (page) => {
      if (turn !== this.turn) return;
      this.items = [...this.items, ...page[this.name]];
      extend(this.rows, page[this.name].map(this.row));
      this.tell(page);
    });
  }

  async read(next, then) {
    try {
      then(await this.ask(next));
    } catch (error) {
      report(error, this.note);
    }
  }

  tell({ next }) {
    this.next = next ?? null;
    if (this.more) this.more.hidden = this.next === null;
    this.note.textContent = this.told(this.items, this.next);
  }
}
