// Drives the operators' page in Chromium, by playwright-core. Needs PLAYWRIGHT (the directory of
// the package) and CHROMIUM (the program); PICTURES names a directory for screenshots.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { PAGE, API, API_KEY, SIMULATOR, PICTURES, PLAYWRIGHT, CHROMIUM } = process.env;
const { chromium } = createRequire(import.meta.url)(PLAYWRIGHT);
// How long what a person waits for may take, on a machine with other work.
const PATIENCE = 30_000;
const NASTY = '"><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}';

async function send(fields) {
  const response = await fetch(`${API}/emails`, {
    method: "POST",
    headers: { Authorization: `Bearer ${API_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify({ from: "Dev <dev@example.com>", to: ["success@simulator.amazonses.com"], subject: "Hello", text: "x", ...fields }),
  });
  assert.equal(response.status, 200, await response.clone().text());
  return (await response.json()).id;
}

const faults = (document) => fetch(`${SIMULATOR}/faults`, { method: "PUT", body: JSON.stringify(document) });

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
const origin = new URL(PAGE).origin;
const problems = [];

async function open(url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", (message) => problems.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => problems.push(`dialog: ${dialog.message()}`));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) problems.push(`request: ${request.url()}`);
  });
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  await page.goto(url);
  return page;
}

// Without the key, nothing.
const locked = await open(`${origin}/`);
await locked.getByText("This page is locked").waitFor();
assert.equal(await locked.locator("#open").isVisible(), false);
await locked.context().close();
const wrong = await open(`${origin}/#${"A".repeat(43)}`);
await wrong.getByText("This page is locked").waitFor();
// A refusal shows in the console by the browser's own hand; that one is asked for.
const refused = problems.splice(0).filter((problem) => !problem.includes("401"));
assert.deepEqual(refused, []);
await wrong.context().close();

// With it, live; and the key goes from the address.
const page = await open(PAGE);
await page.locator("#link.live").waitFor();
assert.equal(page.url(), `${origin}/`);
await page.getByText("Nothing is wrong").waitFor();

// A message shows by itself, and whatever it says is text.
const id = await send({ subject: NASTY, to: [`"${NASTY.replaceAll('"', "'")}" <success@simulator.amazonses.com>`], html: `<script>alert(3)</script>${NASTY}` });
await page.locator(`[data-id="${id}"]`).waitFor();
await page.getByRole("cell", { name: NASTY }).first().waitFor();
assert.equal(await page.locator("main img, main script, dialog img, dialog script").count(), 0);

// By keyboard alone: to the message, into its timeline, and back to where one was.
await page.locator("#search [name=id]").focus();
for (let press = 0; press < 40; press += 1) {
  await page.keyboard.press("Tab");
  if (await page.evaluate((wanted) => document.activeElement.dataset.id === wanted, id)) break;
}
assert.equal(await page.evaluate(() => document.activeElement.dataset.id), id, "Tab reaches the message");
await page.keyboard.press("Enter");
await page.locator("dialog[open]").waitFor();
assert.equal(await page.locator("#message-title").textContent(), NASTY);
assert.equal(await page.locator("dialog img, dialog script").count(), 0);
await page.keyboard.press("Escape");
await page.locator("dialog[open]").waitFor({ state: "hidden" });
await page.keyboard.press("Home");
await page.locator("a.skip").focus();
await page.keyboard.press("Enter");
assert.equal(await page.evaluate(() => document.activeElement.id), "main");

// Search, by recipient and by id.
await send({ to: ["Ada <ada@example.net>"], subject: "For Ada" });
await page.locator("#search [name=recipient]").fill("ada@example.net");
await page.getByRole("button", { name: "Search" }).click();
await page.locator("#message-rows").getByRole("cell", { name: "For Ada" }).waitFor();
await page.locator(`[data-id="${id}"]`).waitFor({ state: "detached" });
await page.locator("#search [name=recipient]").fill("");
await page.locator("#search [name=id]").fill(id);
await page.keyboard.press("Enter");
await page.locator("dialog[open]").waitFor();
await page.locator("#timeline").getByText("sent: the provider accepted it").waitFor();
await page.getByRole("button", { name: "Close" }).click();
// It stays closed while the list goes on.
await send({ subject: "Meanwhile" });
await page.locator("#message-rows").getByRole("cell", { name: "Meanwhile" }).waitFor();
await page.waitForTimeout(1500);
assert.equal(await page.locator("dialog[open]").count(), 0, "what was closed has opened by itself");
await page.locator("#search [name=id]").fill("");
await page.getByRole("button", { name: "Search" }).click();

// A fault shows within two seconds of its being known, with what to do; and goes when it is over.
await faults({ always: "sending_paused" });
const held = await send({ subject: "Held" });
let known;
while (known === undefined) {
  const ready = await fetch(`${origin}/readyz`);
  if (ready.status === 503) known = Date.now();
  await ready.text();
}
await page.getByText("the account may not send").waitFor();
const took = Date.now() - known;
console.log(`a fault showed after ${took} ms`);
assert.ok(took < 2_000, `a fault showed after ${took} ms`);
await page.getByText("See the account's status in the SES console").waitFor();
await page.locator("tr", { has: page.locator(`[data-id="${held}"]`) }).getByText("queued", { exact: true }).waitFor();
if (PICTURES) await page.screenshot({ path: `${PICTURES}/fault.png` });
await faults({});
await page.getByText("Nothing is wrong").waitFor();

// A bounce suppresses, and shows.
await send({ to: ["bounce@simulator.amazonses.com"], subject: "Bounces" });
await page.locator("#suppression-rows").getByText("bounce@simulator.amazonses.com").waitFor();

// At every width and in both schemes, nothing sticks out.
for (const [name, width, height, colorScheme] of [["desk-light", 1280, 900, "light"], ["desk-dark", 1280, 900, "dark"], ["phone-light", 360, 780, "light"], ["phone-dark", 360, 780, "dark"]]) {
  const view = await open(PAGE, { viewport: { width, height }, colorScheme });
  await view.locator("#link.live").waitFor();
  await view.locator("figure polyline").first().waitFor();
  const wide = await view.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `${name}: ${wide} px stick out`);
  if (PICTURES) await view.screenshot({ path: `${PICTURES}/${name}.png`, fullPage: true });
  await view.context().close();
}

assert.deepEqual(problems, []);
await browser.close();
console.log("all of it holds");
