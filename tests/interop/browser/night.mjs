// What somebody does who looks for one lost message: the search by each of its names, its timeline to
// its end, the attempts of an endpoint, the conditions, and lists and numbers that can be trusted.
// Needs what kit.mjs needs.

import assert from "node:assert/strict";

import { PICTURES, end, faults, open, openAt, problems, send, sticksOut, tab } from "./kit.mjs";

const { PAGE } = process.env;
const shot = async (page, name) => { if (PICTURES) await page.screenshot({ path: `${PICTURES}/night-${name}.png`, fullPage: true }); };

// Nothing was sent yet: the page teaches how, with a line that works.
const page = await openAt("#/messages");
await page.locator("#first-steps").getByText("The first message").waitFor();
const curl = await page.locator("#first-steps pre").filter({ hasText: "curl" }).textContent();
assert.ok(curl.includes(`${process.env.API}/emails`) && curl.includes("@example.com"), curl);
await shot(page, "nothing");

// One message is tried three times before SES takes it, and one is never sent.
await faults({ script: ["unavailable", "throttled", "pass"] });
const late = await send({ subject: "Late invoice 1815", to: ["Ada <ada.late@example.net>"], metadata: { order: "18-15" }, idempotencyKey: "invoice/1815" });
await page.locator(`[data-id="${late}"]`).getByText("delivered").waitFor();
await faults({ script: ["rejected"] });
const failed = await send({ subject: "Never sent" });
const bounced = await send({ to: ["bounce+night@simulator.amazonses.com"], subject: "Comes back" });

// The timeline of each says what happened, why, and what to do.
const goTo = (to) => page.evaluate((hash) => { location.hash = hash; }, to);
await goTo(`#/message/${late}`);
const timeline = page.locator("#timeline");
await timeline.getByText("attempt 1 failed").waitFor();
await timeline.getByText("attempt 2 failed").waitFor();
await timeline.getByText("the provider accepted it at attempt 3").waitFor();
await timeline.getByText("SES asked to slow down").waitFor();
await page.locator("#message-fields").getByText("invoice/1815").waitFor();
assert.match(await page.title(), /Late invoice 1815 – pillarbox$/);
await shot(page, "late");
await goTo(`#/message/${failed}`);
await timeline.getByText("SES refused this message for good").waitFor();
await timeline.getByText("post it again with a new idempotency key").waitFor();
await goTo(`#/message/${bounced}`);
await timeline.getByText("the address does not exist").waitFor();
await timeline.getByText(/^Webhook: endpoint 1/).first().waitFor();
await shot(page, "bounced");
// To the explanation, the suppression and the endpoint, by links.
await timeline.getByRole("link", { name: "More about bounce_permanent" }).click();
await page.locator("#help-bounce_permanent").waitFor();
assert.equal(await page.evaluate(() => document.activeElement.id), "help-bounce_permanent");
await page.goBack();
await page.locator("#message-fields").getByRole("link", { name: "bounce+night@simulator.amazonses.com", exact: true }).last().click();
await page.locator("#suppressions-note").getByText("1 suppression.").waitFor();

// One box finds the message by each of its names; what names it alone opens it.
const find = async (text) => {
  await page.keyboard.press("/");
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
};
const shown = await (await fetch(`${new URL(PAGE).origin}/page/messages/${late}`, { headers: { Authorization: `Bearer ${new URL(PAGE).hash.slice(1)}` } })).json();
for (const text of [late, late.toUpperCase(), late.slice(0, 16), shown.sesMessageId, "invoice/1815"]) {
  await tab(page, "Overview");
  await find(text);
  await page.locator("#message-title").getByText("Late invoice 1815").waitFor();
  assert.equal(await page.locator("#message-back").getAttribute("href"), "#/messages");
  // Back leads to where the search was begun, and not to the search again.
  await page.goBack();
  await page.locator("#overview").waitFor();
}
for (const text of [late.slice(-8), "ADA.LATE@", "1815 late", "order:18-15"]) {
  await find(text);
  await page.waitForFunction((wanted) => [...document.querySelectorAll("#message-rows tr[data-id]")].map((row) => row.dataset.id).join() === wanted, late);
}
await find("nowhere");
await page.getByText("No message matches.").waitFor();
await find("01a1fd35-0000-7000-8000-000000000000");
await page.getByText("No message matches. A refused request creates no message.").waitFor();

// A list stands still: what is new waits behind a button, and whoever is at a row stays there.
await goTo("#/messages");
await page.locator(`[data-id="${late}"]`).waitFor();
await page.locator(`[data-id="${late}"] a.whole`).focus();
const place = () => page.locator(`[data-id="${late}"]`).evaluate((row) => row.getBoundingClientRect().top);
const before = await place();
for (const subject of ["New 1", "New 2"]) await send({ subject });
await page.getByRole("button", { name: "2 new messages" }).waitFor();
assert.equal(await place(), before, "the row has moved");
assert.equal(await page.evaluate(() => document.activeElement.closest("[data-id]")?.dataset.id), late);
await page.getByRole("button", { name: "2 new messages" }).press("Enter");
await page.locator("#message-rows tr[data-id]").first().getByText("New 2").waitFor();

// An endpoint says what it answered to each attempt.
await goTo("#/webhooks/1");
const attempts = page.locator("#attempt-rows");
const refused = attempts.locator("tr").filter({ hasText: "no room at the inn" });
await refused.getByText("status 500").click();
await refused.getByText("no room at the inn").waitFor();
await refused.getByText("waiting", { exact: true }).waitFor();
await attempts.getByRole("button", { name: /^Copy command that sends .* again$/ }).first().waitFor();
await shot(page, "endpoint");

// A tile is the number of messages in the list behind it.
await tab(page, "Overview");
const tiles = page.locator("#range-tiles");
for (const outcome of ["accepted", "sent", "bounced", "failed", "delayed", "rejected"]) {
  const tile = tiles.locator("div").filter({ hasText: new RegExp(`^${outcome}`) });
  await tile.filter({ hasText: /\d$/ }).waitFor();
  // Both at one moment, because the tile may be counted again.
  const [told, to] = await tile.locator("dd a").evaluate((link) => [Number(link.textContent), link.hash]);
  await goTo(to);
  await page.locator("#messages-note").getByText(told === 1 ? "1 message." : `${told} messages.`, { exact: true }).waitFor();
  assert.equal(await page.locator("#message-rows tr[data-id]").count(), told, outcome);
  await page.goBack();
  await tile.waitFor();
}

await page.context().close();

// Many conditions take at most a third of the screen; each kind is a line that opens.
const organisations = 4;
const many = await open(PAGE, { viewport: { width: 1440, height: 900 } });
let isSilent = false;
await many.route("**/page/live", async (route) => {
  if (isSilent) return route.abort();
  const one = (code, severity, more = {}) => ({ code, severity, message: `Something is wrong with ${code} in a sentence of the usual length`, advice: `See it: pillarbox message list --status queued --org acme. Then go on`, ready: true, ...more });
  const conditions = [
    one("account_paused", "critical"), one("queue_stuck", "critical"), one("store_refusing", "critical"),
    ...Array.from({ length: 5 }, (_, index) => one("domain_paused", "warning", { message: `The provider does not accept d${index}.example of acme`, affected: { outcome: "queued", organisation: "acme", domain: `d${index}.example`, waiting: index === 0 ? 207 : 1 } })),
    ...Array.from({ length: organisations }, (_, index) => one("bounces", "warning", { message: `6.00 % of org${index}'s mail bounced`, affected: { outcome: "bounced", organisation: `org${index}`, domain: null, waiting: null, from: "2027-01-14T08:00:00.000Z" } })),
    one("webhook_failing", "warning"), one("quota_low", "warning", { affected: { outcome: "queued", organisation: null, domain: null, waiting: 0 } }), one("events_unreadable", "warning"), one("messages_failed", "warning"), one("clock_jumped", "warning"), one("starting", "notice"), one("draining", "notice"),
  ];
  const state = { version: "0", started: 0, conditions, limits: { bounces: { permille: 50, least: 100 }, complaints: { permille: 1, least: 1000 } }, queue: { messages: 211, inFlight: 0, bytes: 1, maxBytes: 2 ** 30 }, bodies: "none", rate: null, rateLimit: null, quota: null, totals: [["refused", 0]], changes: 1, organisations: [], nodes: [], caught: null, sample: { at: Date.now(), accepted: 0, sent: 0, recipients: 0, queue: 211, latency: null } };
  return route.fulfill({ contentType: "text/event-stream", body: `event: history\ndata: []\n\nevent: state\ndata: ${JSON.stringify(state)}\n\n` });
});
await many.reload();
await many.getByText("5 domains are paused: 211 messages wait.").waitFor();
const box = await many.locator("#conditions").boundingBox();
assert.ok(box.height <= 300, `the conditions are ${box.height} px high`);
await shot(many, "conditions");
const line = many.locator("details.condition").filter({ hasText: "5 domains are paused" });
await line.locator("summary").press("Enter");
await line.getByRole("link", { name: "Show 207 waiting messages of acme from d0.example" }).waitFor();
await line.getByRole("button", { name: "Copy the command pillarbox message list --status queued --org acme" }).first().waitFor();
const manyBounces = many.locator("details.condition").filter({ hasText: "4 organisations have bounces" });
await manyBounces.locator("summary").press("Enter");
const ofOne = manyBounces.getByRole("link", { name: "Show the bounced messages of the last 24 hours of org1" });
assert.equal(await ofOne.getAttribute("href"), `#/messages?${new URLSearchParams({ outcome: "bounced", organisation: "org1", from: "2027-01-14T08:00:00.000Z" })}`);
const none = many.locator("details.condition").filter({ hasText: "wrong with quota_low" });
await none.locator("summary").press("Enter");
assert.equal(await none.getByRole("link", { name: "waiting messages" }).count(), 0, "nothing waits");
for (const one of [manyBounces, none]) await one.locator("summary").press("Enter");
assert.match(await many.title(), /^\(19\) Overview/);
await shot(many, "conditions-open");
assert.ok(await sticksOut(many) <= 0);

// If the service says nothing, the page says how old what it shows is, and why.
isSilent = true;
await many.locator("#link").getByText(/^Last update \d+ s ago: the service does not answer; trying again$/).waitFor();
await many.context().close();
// The browser tells of the requests that failed, too.
problems.splice(0, problems.length, ...problems.filter((problem) => !problem.includes("ERR_FAILED")));
await end();
