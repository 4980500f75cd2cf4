// What the simulator of `dev` captured, on the operators' page in Chromium: nothing in a message acts,
// and nothing of it is fetched. Needs what page.mjs needs.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";

const { PAGE, API, API_KEY, PICTURES, PLAYWRIGHT, CHROMIUM } = process.env;
const { chromium } = createRequire(import.meta.url)(PLAYWRIGHT);
const PATIENCE = 30_000;
const origin = new URL(PAGE).origin;

// Whoever a message would tell that it was read: every connection counts, whatever is asked for.
const hits = [];
const tracker = createServer((request, response) => {
  hits.push(request.url);
  response.setHeader("Access-Control-Allow-Origin", "*");
  response.end("top.document.title = 'taken'");
});
tracker.on("connection", () => hits.push("connection"));
await new Promise((done) => tracker.listen(0, "127.0.0.1", done));
const remote = `http://127.0.0.1:${tracker.address().port}`;

const html = `<!doctype html><html><head>
<title>taken</title>
<base href="${remote}/base/">
<meta http-equiv="refresh" content="0;url=${remote}/refresh">
<link rel="stylesheet" href="${remote}/sheet.css"><link rel="icon" href="${remote}/icon">
<link rel="preconnect" href="${remote}/"><link rel="dns-prefetch" href="${remote}/">
<link rel="preload" as="image" href="${remote}/preload"><link rel="prefetch" href="${remote}/prefetch">
<style>@import url(${remote}/import.css); @font-face { font-family: f; src: url(${remote}/font) } body { background: url(${remote}/background) } #styled { color: rgb(1, 2, 3); font-family: f }</style>
<script src="${remote}/script.js"></script><script>top.document.title = "taken"; fetch("${remote}/fetch")</script>
</head><body onload="new Image().src='${remote}/onload'">
<p id="styled" style="font-weight: 700">It is on its way.</p>
<img id="own" src="data:image/gif;base64,R0lGODlhAQABAIAAAP8AAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==" width="40" height="40" alt="inlined">
<img id="attached" src="cid:dot@x" width="40" height="40" alt="attached">
<img src="${remote}/pixel.gif" srcset="${remote}/set.gif 2x" onerror="top.document.title='taken'" alt="remote">
<img src="/icon.svg" alt="ours"><video src="${remote}/video" poster="${remote}/poster" autoplay></video><audio src="${remote}/audio" autoplay></audio>
<iframe src="${remote}/frame"></iframe><iframe srcdoc="<img src='${remote}/inner'>&lt;link rel=preconnect href=${remote}/&gt;"></iframe>
<object data="${remote}/object"></object><embed src="${remote}/embed">
<svg width="20" height="20"><image href="${remote}/svg" /><use href="${remote}/use.svg#a" /></svg>
<table background="${remote}/table"><tr><td>Order 1815</td></tr></table>
<form action="${remote}/form"><button id="submit">Pay</button></form>
<a id="link" href="${remote}/link" ping="${remote}/ping">Track it</a> <a id="top" target="_top" href="${remote}/top">Leave</a> <a id="blank" target="_blank" href="${remote}/blank">Window</a>
</body></html>`;

const dot = "R0lGODlhAQABAIAAAP8AAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==";
const script = "<script>top.document.title = 'taken'</script>";

async function send(fields) {
  const response = await fetch(`${API}/emails`, {
    method: "POST",
    headers: { Authorization: `Bearer ${API_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify({ from: "Shöp <shop@example.com>", to: ["Ada <ada@example.net>"], ...fields }),
  });
  assert.equal(response.status, 200, await response.clone().text());
}

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
const elsewhere = [];

async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("dialog", (dialog) => elsewhere.push(`dialog: ${dialog.message()}`));
  context.on("page", (other) => elsewhere.push(`window: ${other.url()}`));
  await page.goto(PAGE);
  await page.locator("#link.live").waitFor();
  await page.getByRole("link", { name: "Captured mail" }).click();
  return page;
}

// It shows by itself as it is caught.
const page = await open();
await page.locator("#captured").getByText("Nothing yet.").waitFor();
await send({ subject: "<b>Order</b> 1815", html, text: "It is on its way.\n<b>text</b>", cc: ["cy@example.net"], bcc: ["bo@example.net"], reply_to: "help@example.com", headers: { "X-Order": "1815" }, attachments: [
  { filename: "<b>bill.html", content: btoa(script), content_type: "text/html" },
  { filename: "dot.gif", content: dot, content_id: "dot@x" },
] });
await page.locator("#captured-rows").getByText("<b>Order</b> 1815").waitFor();
// Names are in clear, as people read them.
await page.locator("#captured-rows").getByText("Shöp <shop@example.com>").waitFor();
await page.locator("#captured-rows a").first().focus();
await page.keyboard.press("Enter");
await page.locator("#mail").waitFor();
const here = page.url();
for (const told of ["<b>Order</b> 1815", "Shöp <shop@example.com>", "ada@example.net", "cy@example.net", "bo@example.net", "help@example.com", "X-Order"]) {
  await page.locator("#mail").getByText(told).first().waitFor();
}

// The HTML is drawn with its styles and its own pictures, in a frame without rights.
assert.equal(await page.locator("#mail-body iframe").getAttribute("sandbox"), "");
const frame = page.frameLocator("#mail-body iframe");
await frame.getByText("It is on its way.").waitFor();
const drawn = await frame.locator("#styled").evaluate((node) => [getComputedStyle(node).color, getComputedStyle(node).fontWeight]);
assert.deepEqual(drawn, ["rgb(1, 2, 3)", "700"]);
for (const picture of ["#own", "#attached"]) {
  assert.equal(await frame.locator(picture).evaluate((image) => image.naturalWidth), 1, picture);
}

// Its files are kept and not shown.
const files = page.locator("#mail-fields a[download]");
assert.deepEqual(await files.allTextContents(), ["<b>bill.html", "dot.gif"]);
const [download] = await Promise.all([page.waitForEvent("download"), files.first().click()]);
const chunks = [];
for await (const chunk of await download.createReadStream()) chunks.push(chunk);
assert.equal(Buffer.concat(chunks).toString(), script);
assert.match(download.suggestedFilename(), /bill\.html$/);
assert.equal(page.url(), here);

// It is drawn, and nobody was turned to for it.
await page.waitForTimeout(1000);
assert.deepEqual(hits, []);

// Nothing acts, whatever is clicked.
const inner = () => page.frames().find((one) => one.url().includes("/page/caught/"));
for (const id of ["submit", "top", "blank"]) await frame.locator(`#${id}`).click();
await page.waitForTimeout(1000);
assert.ok(inner(), "the frame is still the message");
// A click on a link is somebody's will; a browser may connect for it, and asks for nothing.
assert.deepEqual(hits, []);
await frame.locator("#link").click();
await page.waitForTimeout(1000);
assert.deepEqual(hits.splice(0).filter((hit) => hit !== "connection"), []);
assert.equal(page.url(), here);
assert.equal(await page.title(), "Captured mail – pillarbox");

// As text, it is text.
await page.getByRole("button", { name: "Text", exact: true }).click();
assert.equal(await page.locator("#mail-body pre").textContent(), "It is on its way.\n<b>text</b>");
await page.getByRole("button", { name: "Links" }).click();
assert.deepEqual(await page.locator("#mail-body a").allTextContents(), ["link", "top", "blank"].map((name) => `${remote}/${name}`));
assert.equal(await page.locator("#mail-body a[target=_blank][rel='noopener noreferrer']").count(), 3);
await page.getByRole("button", { name: "HTML source" }).click();
assert.equal(await page.locator("#mail-body pre").textContent(), html);
assert.equal(await page.locator("#mail-body img, #mail-body script").count(), 0);
assert.equal(await page.locator("#mail-body iframe").count(), 0);
await page.getByRole("button", { name: "Raw source" }).click();
const raw = await page.locator("#mail-body pre").textContent();
assert.ok(raw.includes("From: =?utf-8?") && raw.includes("Bcc: ") && raw.includes("X-Order: 1815") && raw.includes(html), raw);
// As a phone shows it.
await page.getByRole("button", { name: "HTML on a phone" }).click();
await page.frameLocator("#mail-body iframe").getByText("It is on its way.").waitFor();
assert.equal(await page.locator("#mail-body iframe").evaluate((node) => node.getBoundingClientRect().width), 390);
assert.equal(await page.locator("#mail-body iframe").getAttribute("sandbox"), "");
await page.getByRole("link", { name: "← Captured mail" }).click();
await page.locator("#captured-rows").waitFor();
await page.locator("#mail").waitFor({ state: "hidden" });
assert.equal(await page.locator("#mail-body > *").count(), 0, "nothing of it stays");

// Opened by its own address, it has no more rights.
await page.locator("#captured-rows a").first().click();
const address = await page.locator("#mail-body iframe").getAttribute("src");
const alone = await (await browser.newContext()).newPage();
await alone.goto(origin + address);
await alone.getByText("It is on its way.").waitFor();
await alone.waitForTimeout(500);
assert.equal(await alone.evaluate(() => self.origin), "null");
await alone.context().close();
await page.context().close();
assert.deepEqual(hits, []);
assert.deepEqual(elsewhere, []);

// A message without HTML shows its text at once; at every width and in both schemes, nothing sticks
// out or is cut.
await send({ subject: "Receipt for a very long name of a thing that was bought, with Donaudampfschifffahrtsgesellschaftskapitänsmützen in it", to: Array.from({ length: 6 }, (_, index) => `Recipient Number ${index} <a-rather-long-local-part-${index}@department.example.net>`), text: "Thank you.\n\n".repeat(40) });
for (const [name, width, height, colorScheme] of [["desk-light", 1280, 900, "light"], ["desk-dark", 1280, 900, "dark"], ["phone-light", 390, 844, "light"], ["phone-dark", 390, 844, "dark"]]) {
  const view = await open({ viewport: { width, height }, colorScheme });
  await view.locator("#captured-rows a").nth(1).waitFor();
  const sticksOut = () => view.evaluate(() => [document.documentElement, document.querySelector("#captured")].map((one) => one.scrollWidth - one.clientWidth));
  if (PICTURES) await view.screenshot({ path: `${PICTURES}/caught-${name}-list.png` });
  for (const [index, kind, shown] of [[0, "text", "pre"], [1, "html", "iframe"]]) {
    await view.locator("#captured-rows a").nth(index).click();
    await view.locator(`#mail-body ${shown}`).waitFor();
    if (kind === "html") await view.frameLocator("#mail-body iframe").getByText("It is on its way.").waitFor();
    for (const wide of await sticksOut()) assert.ok(wide <= 0, `${name}, ${kind}: ${wide} px stick out`);
    if (PICTURES) await view.screenshot({ path: `${PICTURES}/caught-${name}-${kind}.png` });
    await view.goBack();
  }
  await view.context().close();
}
assert.deepEqual(hits, []);
await browser.close();
tracker.close();
console.log("all of it holds");
