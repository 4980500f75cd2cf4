// Follow the events of all messages from Node 20 or later, with nothing but the built-in fetch.
//
//     MAIL_KEY=pb_… node examples/events.mjs

import { readFile, rename, writeFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

const url = process.env.MAIL_URL ?? "http://127.0.0.1:8025";
const key = process.env.MAIL_KEY;
const cursorFile = process.env.MAIL_CURSOR ?? "cursor.txt";
const pause = 5; // Seconds between two requests if there is nothing new.

async function readPage(cursor) {
  const parameters = new URLSearchParams({ limit: 100, ...(cursor && { after: cursor }) });
  const response = await fetch(`${url}/events?${parameters}`, {
    headers: { Authorization: `Bearer ${key}` },
    signal: AbortSignal.timeout(30_000),
  });
  return { response, page: await response.json() };
}

/** Says what to do if the service does not answer. */
function noAnswer(error) {
  console.error(`No answer from ${url} (${error.cause?.code ?? error.message}).`);
  console.error("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.");
  return {};
}

/** Put your own code here. After a crash, it gets some events again. */
async function handle(event) {
  console.log(event.id, event.type, event.data.id);
}

// The first start begins with the oldest event.
let cursor = await readFile(cursorFile, "utf8").catch(() => undefined);
for (;;) {
  const { response, page } = await readPage(cursor).catch(noAnswer);
  if (!response?.ok) {
    if (response && ![408, 500, 503].includes(response.status)) {
      throw new Error(`${page.error.code}: ${page.error.message}`);
    }
    await sleep(1000 * Number(response?.headers.get("Retry-After") ?? pause));
    continue;
  }
  for (const event of page.events) await handle(event);
  // Store the cursor last: after a crash before this line, you get the same page again.
  cursor = page.next;
  await writeFile(`${cursorFile}.new`, cursor);
  await rename(`${cursorFile}.new`, cursorFile);
  if (page.events.length === 0) await sleep(1000 * pause);
}
