// Watches the operators' page in Chromium for what it says is wrong, by playwright-core. Needs
// PLAYWRIGHT (the directory of the package) and CHROMIUM (the program). Reads from its input, a
// line each, pages with the texts to watch for, and writes when each text was there to be seen.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { PLAYWRIGHT, CHROMIUM } = process.env;
const { chromium } = createRequire(import.meta.url)(PLAYWRIGHT);
// How long what is waited for may take, on a machine with other work.
const PATIENCE = 120_000;

const tell = (document) => console.log(JSON.stringify(document));

// In the page: notes when each text is first visible, and when the browser itself was held up.
function watch(texts) {
  const TICK = 50;
  const noted = { shown: {}, stalls: [] };
  const conditions = document.getElementById("conditions");
  const look = () => {
    for (const text of texts) {
      if (text in noted.shown) continue;
      const box = [...conditions.children].find((one) => one.textContent.includes(text));
      if (box?.checkVisibility()) noted.shown[text] = Date.now();
    }
  };
  new MutationObserver(look).observe(conditions, { childList: true, subtree: true, characterData: true });
  let last = Date.now();
  setInterval(() => {
    const now = Date.now();
    if (now - last > 2 * TICK) noted.stalls.push([last + TICK, now]);
    last = now;
  }, TICK);
  globalThis.noted = noted;
  look();
  return noted.shown;
}

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
for await (const line of createInterface({ input: process.stdin })) {
  const { url, texts } = JSON.parse(line);
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.goto(url);
  await page.locator("#link.live").waitFor();
  await page.getByText("Nothing is wrong").waitFor();
  tell({ before: await page.evaluate(watch, texts) });
  // What is never shown is missing in what is told.
  await page.waitForFunction((texts) => texts.every((text) => text in globalThis.noted.shown), texts).catch(() => {});
  tell(await page.evaluate(() => globalThis.noted));
  await context.close();
}
await browser.close();
