// Rows as a CSV file (RFC 4180) that no spreadsheet takes for formulas.

import { element } from "/nodes.js";

// With these at its beginning, a spreadsheet takes a cell for a formula (OWASP, "CSV Injection").
// The guard itself is guarded too, so that every cell can be read back.
const GUARDED = /^[=+\-@\t\r']/;

function cellOf(value) {
  const text = String(value ?? "");
  return `"${(GUARDED.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}

// Returns the file's text. The mark at its beginning tells spreadsheets that it is UTF-8.
export function csvText(rows) {
  return `\ufeff${rows.map((row) => `${row.map(cellOf).join(",")}\r\n`).join("")}`;
}

// Gives the rows to the browser as a download.
export function download(name, rows) {
  const url = URL.createObjectURL(new Blob([csvText(rows)], { type: "text/csv" }));
  element("a", null, { href: url, download: name }).click();
  // The browser has to read it first.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
