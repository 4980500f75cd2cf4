// Each tab of the operators' page: its task, its address, and that axe finds nothing on it. Needs
// what kit.mjs needs, and AXE (the file of axe-core).

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { PHONE, PICTURES, VIEWS, end, open, openAt, origin, problems, send, sticksOut, tab } from "./kit.mjs";

const { PAGE, AXE } = process.env;
const axe = await readFile(AXE, "utf8");
const key = new URL(PAGE).hash.slice(1);

const bounced = await send({ to: ["Bo <bounce+bo@simulator.amazonses.com>"], subject: "=Your order 1816, with umlauts äöü", html: "<h1>Hello</h1>" });
const complained = await send({ to: ["complaint@simulator.amazonses.com"], subject: "Weekly news" });
const delivered = await send({ to: ["Ädä Löve <ada@example.net>"], subject: "Your order 1815", html: "<h1>Hello</h1><p><a href=\"https://example.com/a\">Track it</a></p>", text: "Hello" });
await send({ subject: "Reset your password" });

const page = await openAt("#/messages");
await page.locator("#filters > summary").click();
const rows = page.locator("#message-rows tr[data-id]");
const ids = () => rows.evaluateAll((all) => all.map((row) => row.dataset.id));
const field = (name) => page.locator("#search").getByLabel(name);
const only = (id) => page.waitForFunction((wanted) => {
  const found = [...document.querySelectorAll("#message-rows tr[data-id]")].map((row) => row.dataset.id);
  return found.length === 1 && found[0] === wanted;
}, id);

// One outcome, with its word; what bounced is nowhere called sent.
await page.locator(`[data-id="${bounced}"]`).getByText("bounced", { exact: true }).waitFor();
await page.locator(`[data-id="${complained}"]`).getByText("complained", { exact: true }).waitFor();
await page.locator(`[data-id="${delivered}"]`).getByText("delivered", { exact: true }).waitFor();
assert.equal(await page.locator(`[data-id="${bounced}"]`).getByText("sent").count(), 0);
const colour = (id) => page.locator(`[data-id="${id}"] .mark`).evaluate((node) => getComputedStyle(node).color);
assert.notEqual(await colour(bounced), await colour(delivered));

// A bounced message is found by a part of its address.
await field("Recipient").fill("E+BO@sim");
await field("Outcome").selectOption("bounced");
await page.keyboard.press("Tab");
await page.locator("#search").getByRole("button", { name: "Search" }).click();
await only(bounced);
assert.match(page.url(), /#\/messages\?outcome=bounced&recipient=E%2BBO%40sim$/);

// A reload keeps place and filter; so do back and forward.
await page.reload();
await only(bounced);
assert.equal(await field("Recipient").inputValue(), "E+BO@sim");
assert.equal(await field("Outcome").inputValue(), "bounced");
const link = page.url();
await rows.first().click({ position: { x: 500, y: 10 } });
await page.locator("#timeline").getByText("bounced").waitFor();
const messageLink = page.url();
await page.goBack();
await only(bounced);
await page.goForward();
await page.locator("#timeline").getByText("bounced").waitFor();
await page.locator("#message-back").click();
await only(bounced);
assert.equal(page.url(), link);

// Another browser opens the link, and asks for the key once, in a field.
for (const [given, address] of [[key, link], [PAGE, messageLink]]) {
  assert.ok(!address.includes(key), "the key is in a link");
  const colleague = await open(address);
  await colleague.getByText("This page is locked").waitFor();
  await colleague.getByLabel("Address or key").fill("no key");
  await colleague.keyboard.press("Enter");
  await colleague.getByText("This is not a key").waitFor();
  await colleague.getByLabel("Address or key").fill("A".repeat(43));
  await colleague.keyboard.press("Enter");
  await colleague.getByText("The service refused this key").waitFor();
  problems.splice(0, problems.length, ...problems.filter((problem) => !problem.includes("401")));
  await colleague.getByLabel("Address or key").fill(given);
  await colleague.keyboard.press("Enter");
  await colleague.getByText(address === link ? "Your order 1816" : "pillarbox accepted it").first().waitFor();
  assert.equal(colleague.url(), address);
  // Another tab of that browser asks no more.
  const second = await colleague.context().newPage();
  await second.goto(link);
  await second.locator(`[data-id="${bounced}"]`).waitFor();
  await colleague.context().close();
}

// Search by words of the subject, the sender's domain and time.
const search = async (query) => {
  await page.evaluate((to) => { location.hash = to; }, `#/messages?${new URLSearchParams(query)}`);
};
await search({ subject: "1815 ORDER" });
await only(delivered);
await search({ sender_domain: "example.com", outcome: "complained" });
await only(complained);
await search({ sender_domain: "other.example" });
await page.getByText("No message matches.").waitFor();
await search({ until: new Date(Date.now() - 3_600_000).toISOString() });
await page.getByText("No message matches.").waitFor();
await search({ from: new Date(Date.now() - 3_600_000).toISOString(), subject: "order" });
await page.locator(`[data-id="${bounced}"]`).waitFor();
assert.deepEqual(await ids(), [delivered, bounced]);

// What is shown, as a file that no spreadsheet takes for formulas.
const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save as CSV" }).first().click()]);
const chunks = [];
for await (const chunk of await download.createReadStream()) chunks.push(chunk);
const csv = Buffer.concat(chunks).toString();
assert.equal(download.suggestedFilename(), "messages.csv");
assert.equal(csv.split("\r\n").length, 4, csv);
assert.ok(csv.includes(`"'=Your order 1816, with umlauts äöü"`), csv);
assert.ok(csv.includes(`"bounced","sent"`) && csv.includes(bounced), csv);

// A search ends after a while, says how far back it looked, and looks further if it is asked.
await Promise.all(Array.from({ length: 55 }, (_, index) => send({ subject: `Lot ${index}` })));
await search({ subject: "lot" });
await page.locator("#messages-note").getByText(/^50 of 55 messages at [\d:]{8}, looked back to/).waitFor();
await page.getByRole("button", { name: "Search older messages" }).press("Enter");
await page.locator("#messages-note").getByText(/^55 messages/).waitFor();
assert.equal(new Set(await ids()).size, 55);

// An id is copied.
await page.context().grantPermissions(["clipboard-read", "clipboard-write"], { origin });
await page.evaluate((to) => { location.hash = to; }, `#/message/${bounced}`);
await page.getByRole("button", { name: "Copy the message's id" }).press("Enter");
await page.getByText("Copied").waitFor();
assert.equal(await page.evaluate(() => navigator.clipboard.readText()), bounced);

// A number opens the messages that it counts.
await tab(page, "Overview");
await page.locator("#ranges").getByRole("link", { name: "24 hours" }).press("Enter");
await page.getByRole("link", { name: "1 bounced, last 24 hours: show these messages" }).press("Enter");
await only(bounced);
await page.goBack();
await page.reload();
assert.equal(await page.locator("#ranges [aria-current]").textContent(), "24 hours");
await page.locator("#range-plots polyline").first().waitFor();
await tab(page, "Organisations");
await page.getByRole("link", { name: "1 complained of dev: show these messages" }).press("Enter");
await only(complained);

// Times are in the viewer's zone, with UTC at hand.
const tokyo = await openAt(`#/message/${bounced}`, { timezoneId: "Asia/Tokyo" });
const time = tokyo.locator("#timeline time").first();
const instant = new Date(await time.getAttribute("datetime"));
const local = new Date(instant.getTime() + 9 * 3_600_000).toISOString().replace("T", " ").slice(0, 19);
assert.equal(await time.textContent(), local);
assert.equal(await time.getAttribute("title"), `${instant.toISOString().replace("T", " ").slice(0, 19)} UTC`);
await tokyo.getByText("Times are in Asia/Tokyo (UTC+09:00)").waitFor();
await tokyo.context().close();

// Domains with their state, from their organisation.
await tab(page, "Organisations");
await page.getByRole("link", { name: "1 sender domain of dev" }).click();
await page.locator("#domain-rows").getByText("assumed").waitFor();
await page.getByText("Domains of dev.").waitFor();

// The domain shows its records to copy, as SES has them or would have them.
await page.getByRole("link", { name: "example.com" }).click();
await page.locator("#domain-title").getByText("example.com").waitFor();
await page.locator("#domain-fields").getByText("SES says").waitFor();
await page.locator("#record-rows tr").first().waitFor();

// Suppressions are found by a part of the address, and lead to the message that caused them.
await tab(page, "Suppressions");
await page.locator("#suppression-rows tr").nth(1).waitFor();
await page.locator("#suppressions-find").getByLabel("Address").fill("BO@sim");
await page.keyboard.press("Enter");
await page.locator("#suppressions-note").getByText("1 suppression.").waitFor();
await page.locator("#suppression-rows tr", { hasText: "bounce" }).click({ position: { x: 20, y: 10 } });
await page.locator("#timeline").getByText("bounced").waitFor();

// Captured mail and its timeline lead to each other.
await page.getByRole("link", { name: "Captured mail" }).last().click();
await page.locator("#mail-body iframe").waitFor();
await page.getByRole("link", { name: "Timeline of the message" }).click();
await page.locator("#timeline").getByText("bounced").waitFor();
await page.context().close();

// The endpoint was told of the events, and its row says so.
{
  const view = await openAt("#/webhooks");
  const endpoint = view.locator("#webhook-rows tr").filter({ hasText: "/hooks?tenant=7" });
  await endpoint.getByText("active", { exact: true }).waitFor();
  await endpoint.locator("td.number").first().filter({ hasText: /^[1-9]/ }).waitFor();
  // It opens to its attempts, each with the command that sends its event again.
  await endpoint.getByRole("link").click();
  const attempt = view.locator("#attempt-rows tr").first();
  await attempt.getByText("delivered").waitFor();
  await attempt.getByText("status 200").waitFor();
  await attempt.getByRole("button", { name: /^Copy command that sends/ }).waitFor();
  assert.match(await view.title(), /Endpoint 1 – pillarbox$/);
  await view.context().close();
}

// At both widths and in both themes, axe finds nothing and nothing sticks out.
const places = { overview: "#/overview?range=1h", messages: "#/messages", message: `#/message/${bounced}`, organisations: "#/organisations", organisation: "#/organisations/dev", keys: "#/keys", domains: "#/domains", domain: "#/domains/example.com", documents: "#/documents", help: "#/help/bounce_permanent", webhook: "#/webhooks/1", suppressions: "#/suppressions", webhooks: "#/webhooks", captured: "#/captured", mail: null };
const settled = { overview: "#range-plots polyline", messages: "#message-rows a", message: "#timeline li", organisations: "#organisation-rows td a", organisation: "#organisation-tiles a", keys: "#key-rows th", domains: "#domain-rows a", domain: "#record-rows tr", documents: "#document-rows td", help: "#help-conditions dt", webhook: "#attempt-rows .mark", suppressions: "#suppression-rows a", webhooks: "#webhook-rows .mark", captured: "#captured-rows a", mail: "#mail-body > *" };
async function check(view, name) {
  const wide = await sticksOut(view);
  assert.ok(wide <= 0, `${name}: ${wide} px stick out`);
  // What is between has the parts of both.
  if (!/^(desk|phone)/.test(name)) return;
  await view.evaluate(axe);
  const found = await view.evaluate(() => globalThis.axe.run(document, { iframes: false }));
  const told = found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => `${node.html} ${node.failureSummary}`).join("; ")}`);
  assert.deepEqual(told, [], name);
}
for (const [name, viewport, colorScheme] of VIEWS) {
  const unopened = await open(`${origin}/`, { viewport, colorScheme });
  await unopened.getByText("This page is locked").waitFor();
  await check(unopened, `${name}, locked`);
  await unopened.context().close();
  const view = await openAt(null, { viewport, colorScheme });
  for (const [place, address] of Object.entries(places)) {
    if (address === null) await view.locator("#captured-rows a", { hasText: "" }).first().click();
    else await view.evaluate((to) => { location.hash = to; }, address);
    await view.locator(settled[place]).first().waitFor();
    // A row on a phone is two lines.
    if (viewport === PHONE && ["messages", "suppressions", "captured"].includes(place)) {
      const heights = await view.locator(`#${place} tbody tr`).evaluateAll((all) => all.map((row) => row.getBoundingClientRect().height));
      for (const height of heights) assert.ok(height < 72, `${name}: a row is ${height} px high`);
    }
    await check(view, `${name}, ${place}`);
    if (PICTURES) await view.screenshot({ path: `${PICTURES}/${name}-${place}.png`, fullPage: true });
  }
  await view.context().close();
}
await end();
