// Nodes of the page. Whatever came from mail is set as text alone.

export const find = (id) => document.getElementById(id);

export function element(name, text, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) node.setAttribute(attribute, value);
  return node;
}

export function when(text) {
  const time = element("time", text.replace("T", " ").slice(0, 19), { datetime: text, title: text });
  return time;
}

// Puts rows into a table. Where it is narrow, each cell shows its column's name.
export function fill(table, rows, further) {
  const names = [...table.closest("table").querySelectorAll("thead th")].map((head) => head.textContent);
  for (const row of rows) if (row.children.length > 1) [...row.children].forEach((cell, index) => { cell.dataset.label = names[index]; });
  if (further) table.append(...rows);
  else table.replaceChildren(...rows);
}

export function emptyRow(columns, text) {
  const row = element("tr");
  row.append(element("td", text, { colspan: columns, class: "empty" }));
  return row;
}

export function field(name, value) {
  if (value === undefined || value === null || value === "") return [];
  return [element("dt", name), element("dd", value)];
}
