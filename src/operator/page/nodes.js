// Nodes of the page. All text from mail is set as text alone.

export const find = (id) => document.getElementById(id);

export function element(name, text, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) node.setAttribute(attribute, value);
  return node;
}

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(value);

const two = (number) => String(number).padStart(2, "0");

// Returns an instant as the viewer's clock shows it, to the second.
export function localTime(instant) {
  const at = new Date(instant);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// Returns a time in the viewer's zone, with UTC for whoever points at it.
export function when(text) {
  return element("time", localTime(text), { datetime: text, title: `${text.replace("T", " ").slice(0, 19)} UTC` });
}

export function link(text, href, attributes = {}) {
  return element("a", text, { href, ...attributes });
}

// Returns a mark with a word and a tone: good, bad, warn, open or plain.
export function mark(word, tone) {
  return element("span", word, { class: `mark ${tone}` });
}

// Returns a cell with nodes or text.
export function cell(className, ...content) {
  const node = element("td", null, className ? { class: className } : {});
  node.append(...content);
  return node;
}

// Puts rows into a table in place of those there. Whoever was at a link stays at it.
export function fill(table, rows) {
  const focused = table.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  table.replaceChildren();
  extend(table, rows);
  if (focused) [...table.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

// Adds rows to a table. On a narrow screen each cell shows its column's name.
export function extend(table, rows) {
  const names = [...table.closest("table").querySelectorAll("thead th")].map((head) => head.textContent);
  for (const row of rows) if (row.children.length > 1) [...row.children].forEach((one, index) => { one.dataset.label = names[index]; });
  table.append(...rows);
}

export function emptyRow(columns, text) {
  const row = element("tr");
  row.append(element("td", text, { colspan: columns, class: "empty" }));
  return row;
}

// Returns a name and its value, which is text or nodes; nothing if there is no value.
export function field(name, ...value) {
  if (value.every((part) => part === undefined || part === null || part === "")) return [];
  const shown = element("dd");
  shown.append(...value);
  return [element("dt", name), shown];
}

// Returns an identifier with a button that copies it.
export function copied(text, what) {
  const button = element("button", "Copy", { type: "button", class: "copy", "aria-label": `Copy ${what}` });
  button.addEventListener("click", async () => {
    await copy(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return [element("code", text), " ", button];
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without TLS, browsers have a clipboard for localhost alone.
  const area = element("textarea", text);
  const before = document.activeElement;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  before?.focus();
}

// Returns the first recipients, and how many more there are.
export function recipients(all) {
  return all.slice(0, 2).join(", ") + (all.length > 2 ? ` and ${all.length - 2} more` : "");
}
