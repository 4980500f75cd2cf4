// What the scripts share that drive the operators' page in Chromium, by playwright-core. Needs
// PLAYWRIGHT (the directory of the package) and CHROMIUM (the program); PICTURES names a directory
// for screenshots.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { PAGE, API, API_KEY, SIMULATOR, PLAYWRIGHT, CHROMIUM } = process.env;
const { chromium } = createRequire(import.meta.url)(PLAYWRIGHT);
// How long what a person waits for may take, on a machine with other work.
const PATIENCE = 30_000;

export const { PICTURES } = process.env;
export const origin = new URL(PAGE).origin;
export const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
// What no page may do: write to the console, fail, ask the user, or turn to anybody else.
export const problems = [];

export const DESK = { width: 1280, height: 900 };
export const PHONE = { width: 390, height: 844 };
const TABLET = { width: 1024, height: 768 };
const WIDE = { width: 1440, height: 900 };
export const VIEWS = [
  ["desk-light", DESK, "light"], ["desk-dark", DESK, "dark"], ["phone-light", PHONE, "light"], ["phone-dark", PHONE, "dark"],
  ["tablet-light", TABLET, "light"], ["wide-dark", WIDE, "dark"],
];

export async function send(fields) {
  const response = await fetch(`${API}/emails`, {
    method: "POST",
    headers: { Authorization: `Bearer ${API_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify({ from: "Dev <dev@example.com>", to: ["success@simulator.amazonses.com"], subject: "Hello", text: "x", ...fields }),
  });
  assert.equal(response.status, 200, await response.clone().text());
  return (await response.json()).id;
}

export const faults = (document) => fetch(`${SIMULATOR}/faults`, { method: "PUT", body: JSON.stringify(document) });

export async function open(url, options = {}) {
  const context = await browser.newContext({ viewport: DESK, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", (message) => problems.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => problems.push(`dialog: ${dialog.message()}`));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "blob:" && url.origin !== origin) problems.push(`request: ${request.url()}`);
  });
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  await page.goto(url);
  return page;
}

// Opens a place of the page, with the key.
export async function openAt(place, options) {
  const page = await open(PAGE, options);
  await page.locator("#link.live").waitFor();
  if (place) await page.evaluate((to) => { location.hash = to; }, place);
  return page;
}

// Opens a tab by its name.
export const tab = (page, name) => page.locator("#tabs").getByRole("link", { name, exact: true }).click();

export async function sticksOut(page) {
  return page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
}

export async function end() {
  assert.deepEqual(problems, []);
  await browser.close();
  console.log("all of it holds");
}
