// What the built-in simulator was given. A message's HTML is never part of this document: it is one
// of its own, framed without any right (no scripts, no forms, no links that are followed), and the
// service's policy for it lets it load nothing.

import { element, emptyRow, field, fill, find, when } from "/nodes.js";

export class Caught {
  // `read` gets a document from the service; `failed` tells that it could not be had.
  constructor(read, failed) {
    this.read = read;
    this.failed = failed;
    this.total = null;
    find("mail-close").addEventListener("click", () => find("mail").close());
    // Nothing of a message stays once it is closed.
    find("mail").addEventListener("close", () => find("mail-body").replaceChildren());
  }

  // Takes note of how many were caught: nothing where there is no simulator.
  follow(total) {
    const isThere = total !== null && total !== undefined;
    find("caught").hidden = find("caught-link").hidden = !isThere;
    if (isThere && total !== this.total) this.list(total);
  }

  async list(total) {
    this.total = total;
    try {
      const { messages } = await this.read("/page/caught");
      const focused = document.activeElement?.dataset?.caught;
      const rows = messages.map((message) => this.row(message));
      fill(find("caught-rows"), rows.length ? rows : [emptyRow(4, "Nothing yet.")], false);
      if (focused) find("caught-rows").querySelector(`[data-caught="${CSS.escape(focused)}"]`)?.focus();
      find("caught-note").textContent = "";
    } catch (error) {
      this.total = null;
      this.failed(error);
    }
  }

  row({ id, caughtAt, from, to, subject }) {
    const open = element("button", null, { type: "button", class: "row", "data-caught": id, "aria-label": `Caught message to ${to.join(", ")}` });
    open.append(when(caughtAt));
    open.addEventListener("click", () => this.open(id));
    const [row, first] = [element("tr"), element("td", null, { class: "time" })];
    first.append(open);
    const more = to.length > 2 ? ` and ${to.length - 2} more` : "";
    row.append(first, element("td", from, { class: "text" }), element("td", to.slice(0, 2).join(", ") + more, { class: "text" }), element("td", subject, { class: "text" }));
    return row;
  }

  async open(id) {
    try {
      const message = await this.read(`/page/caught/${encodeURIComponent(id)}`);
      find("mail-title").textContent = message.subject;
      find("mail-fields").replaceChildren(
        ...field("From", message.from), ...field("To", message.to.join("\n")), ...field("Cc", message.cc.join("\n")),
        ...field("Bcc", message.bcc.join("\n")), ...field("Reply-To", message.replyTo.join("\n")),
        ...message.headers.flatMap(([name, value]) => field(name, value)), ...message.files.flatMap(fileField), ...field("Provider's id", message.id));
      this.offer(message);
      if (!find("mail").open) find("mail").showModal();
      find("mail-title").focus();
    } catch (error) {
      this.failed(error);
    }
  }

  // Shows the first of the ways to look at a message, with a button for each.
  offer({ html, text, frame }) {
    const views = [];
    if (frame) views.push(["HTML", () => element("iframe", null, { sandbox: "", referrerpolicy: "no-referrer", title: "The message's HTML", src: frame })]);
    if (text !== null) views.push(["Text", () => plain(text, "The message's text")]);
    const links = html === null ? [] : linksOf(html);
    if (links.length > 0) views.push(["Links", () => listed(links)]);
    if (html !== null) views.push(["HTML source", () => plain(html, "The source of the message's HTML")]);
    const buttons = views.map(([name, made]) => {
      const button = element("button", name, { type: "button" });
      button.addEventListener("click", () => {
        for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
        find("mail-body").replaceChildren(made());
      });
      return button;
    });
    find("mail-views").replaceChildren(...buttons);
    buttons[0]?.click();
  }
}

// A file to be kept: the service never lets a browser show one.
function fileField({ name, mediaType, contentId, size, download }) {
  const value = element("dd");
  const more = [mediaType ?? "no type", `${size} bytes`, ...(contentId === null ? [] : [`cid:${contentId}`])];
  value.append(element("a", name, { href: download, download: name }), ` (${more.join(", ")})`);
  return [element("dt", "File"), value];
}

// Where the HTML's links lead, read in a document that is never shown and loads nothing.
function linksOf(html) {
  const anchors = new DOMParser().parseFromString(html, "text/html").querySelectorAll("a[href]");
  const targets = [...anchors].map((anchor) => anchor.getAttribute("href").trim());
  return [...new Set(targets.filter((target) => /^https?:\/\//i.test(target)))];
}

// To be followed on purpose, in a tab of their own that learns nothing of this one.
function listed(targets) {
  const list = element("ul");
  for (const target of targets) {
    const item = element("li");
    item.append(element("a", target, { href: target, target: "_blank", rel: "noopener noreferrer" }));
    list.append(item);
  }
  return list;
}

// Text that may be long: whoever scrolls by keyboard can reach it.
function plain(text, label) {
  return element("pre", text, { tabindex: "0", role: "region", "aria-label": label });
}
