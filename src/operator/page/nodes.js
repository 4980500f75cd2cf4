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

const AGO = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];

// Returns how long ago an instant was, in its largest unit; the date, if that is a week or more.
export function sinceText(text, now = Date.now()) {
  const passed = Math.max(0, Math.floor((now - Date.parse(text)) / 1000));
  if (passed >= 7 * 86_400) return localTime(text).slice(0, 16);
  const [size, unit] = AGO.find(([least]) => passed >= least) ?? [1, "s"];
  return `${Math.floor(passed / size)} ${unit} ago`;
}

// Returns how long ago a time was, with the exact one for whoever points at it.
export function ago(text) {
  return element("time", sinceText(text), { datetime: text, class: "ago", title: `${localTime(text)}, ${text.replace("T", " ").slice(0, 19)} UTC` });
}

setInterval(() => {
  for (const one of document.querySelectorAll("time.ago")) {
    const told = sinceText(one.dateTime);
    if (one.textContent !== told) one.textContent = told;
  }
}, 5000);

// Returns a count with its word: "1 message", "2 messages".
export const several = (value, word, words = `${word}s`) => `${count(value)} ${value === 1 ? word : words}`;

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
  keepFocus(table, () => {
    table.replaceChildren();
    extend(table, rows);
  });
}

// Changes what is in a table. Whoever was at a link stays at it.
export function keepFocus(table, change) {
  const focused = table.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  change();
  if (focused) [...table.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

// Adds rows to a table.
export function extend(table, rows) {
  table.append(...labelled(table, rows));
}

// Returns rows for a table: on a narrow screen each cell shows its column's name.
export function labelled(table, rows) {
  const names = [...table.closest("table").querySelectorAll("thead th")].map((head) => head.textContent);
  for (const row of rows) if (row.children.length > 1) [...row.children].forEach((one, index) => { one.dataset.label = names[index]; });
  return rows;
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
export const copied = (text, what) => [element("code", text), " ", copyButton(text, what)];

// Returns a button that copies a text. Its name begins with the word that is seen.
export function copyButton(text, what, word = "Copy") {
  const button = element("button", word, { type: "button", class: "copy", "aria-label": `${word} ${what}` });
  button.addEventListener("click", async () => {
    await copy(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = word; }, 2000);
  });
  return button;
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
