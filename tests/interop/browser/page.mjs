// The operators' page: what opens it, that it is live, that mail stays text, and that it works by
// keyboard and at every width.

import assert from "node:assert/strict";

import { PICTURES, browser, end, faults, open, openAt, origin, problems, send, sticksOut, tab } from "./kit.mjs";

const { PAGE } = process.env;
const NASTY = '"><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}';

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
// In a sentence: how many bodies wait, and what they survive.
await page.locator("#bodies").getByText("Pending messages: 0 bodies in ").waitFor();
assert.ok((await page.locator("#bodies").textContent()).includes("They survive `pillarbox restart`, but not a stop or a crash: "));

// A message shows by itself, and whatever it says is text.
await tab(page, "Messages");
await page.getByText("There are no messages yet.").waitFor();
const id = await send({ subject: NASTY, to: [`"${NASTY.replaceAll('"', "'")}" <success@simulator.amazonses.com>`], html: `<script>alert(3)</script>${NASTY}` });
await page.locator(`[data-id="${id}"]`).waitFor();
await page.getByRole("cell", { name: NASTY }).first().waitFor();
assert.equal(await page.locator("main img, main script").count(), 0);
await page.locator(`[data-id="${id}"]`).getByText("delivered").waitFor();

// By keyboard alone: to the message, into its timeline, and back to where one was.
const focusedId = () => page.evaluate(() => document.activeElement.closest("[data-id]")?.dataset.id);
await page.keyboard.press("/");
assert.equal(await page.evaluate(() => document.activeElement.getAttribute("name")), "text");
for (let press = 0; press < 40; press += 1) {
  await page.keyboard.press("Tab");
  if ((await focusedId()) === id) break;
}
assert.equal(await focusedId(), id, "Tab reaches the message");
await page.keyboard.press("Enter");
await page.locator("#message-title").getByText(NASTY).waitFor();
assert.equal(await page.locator("#message-title").textContent(), NASTY);
assert.equal(await page.evaluate(() => document.activeElement.id), "message-title");
assert.equal(await page.locator("main img, main script").count(), 0);
await page.keyboard.press("Shift+Tab");
await page.keyboard.press("Enter");
await page.locator("#messages").waitFor();
await page.waitForFunction((wanted) => document.activeElement.closest("[data-id]")?.dataset.id === wanted, id);
await page.locator("a.skip").focus();
await page.keyboard.press("Enter");
assert.equal(await page.evaluate(() => document.activeElement.id), "main");

// Search, by recipient and by id.
await send({ to: ["Ada <ada@example.net>"], subject: "For Ada" });
await page.locator("#filters > summary").click();
await page.locator("#search [name=recipient]").fill("ada@example.net");
await page.locator("#search").getByRole("button", { name: "Search" }).click();
await page.locator("#message-rows").getByRole("cell", { name: "For Ada", exact: true }).waitFor();
await page.locator(`[data-id="${id}"]`).waitFor({ state: "detached" });
await page.locator("#search [name=recipient]").fill("");
await page.locator("#find [name=text]").fill(id);
await page.keyboard.press("Enter");
await page.locator("#timeline").getByText("sent: the provider accepted it").waitFor();
await page.locator("#message-back").click();
await page.getByRole("button", { name: "Clear" }).click();
await page.locator(`[data-id="${id}"]`).waitFor();
// The list stands still, offers what is new, and opens nothing.
await send({ subject: "Meanwhile" });
await page.getByRole("button", { name: "1 new message" }).click();
await page.locator("#message-rows").getByRole("cell", { name: "Meanwhile", exact: true }).waitFor();
await page.waitForTimeout(1500);
assert.equal(await page.locator("#message").isVisible(), false, "what was closed has opened by itself");

// A fault shows within two seconds of its being known, with what to do; and goes when it is over.
await tab(page, "Overview");
await faults({ always: "sending_paused" });
const held = await send({ subject: "Held" });
let known;
while (known === undefined) {
  const ready = await fetch(`${origin}/readyz`);
  const { reasons } = await ready.json();
  if (reasons.length > 0) known = Date.now();
}
await page.getByText("the account is not allowed to send").waitFor();
const took = Date.now() - known;
console.log(`a fault showed after ${took} ms`);
assert.ok(took < 2_000, `a fault showed after ${took} ms`);
await page.getByText("Check the account's status in the SES console").waitFor();
if (PICTURES) await page.screenshot({ path: `${PICTURES}/fault.png` });
// What a list shows of a call goes on after it, although the call changes no count of messages.
let isCalled = true;
await page.route("**/page/messages?*", async (route) => {
  const response = await route.fetch();
  const listing = await response.json();
  if (isCalled) for (const message of listing.messages) if (message.id === held) Object.assign(message, { outcome: "sending", status: "sending" });
  await route.fulfill({ response, json: listing });
});
await tab(page, "Messages");
await page.locator(`[data-id="${held}"]`).getByText("sending", { exact: true }).waitFor();
isCalled = false;
await page.locator(`[data-id="${held}"]`).getByText("queued", { exact: true }).waitFor();
await page.unroute("**/page/messages?*");
// Each tab says that there is something wrong.
await page.getByRole("link", { name: "1 problem" }).click();
await faults({});
await page.getByText("Nothing is wrong").waitFor();

// A bounce suppresses, and shows.
await send({ to: ["bounce@simulator.amazonses.com"], subject: "Bounces" });
await tab(page, "Suppressions");
await page.locator("#suppression-rows").getByText("bounce@simulator.amazonses.com").waitFor();
await page.context().close();

// Narrower than any phone, nothing sticks out either.
const narrow = await openAt(null, { viewport: { width: 360, height: 780 } });
await narrow.locator("figure polyline").first().waitFor();
const wide = await sticksOut(narrow);
assert.ok(wide <= 0, `${wide} px stick out`);
assert.equal(browser.contexts().length, 1);
await end();
