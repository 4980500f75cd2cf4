// Send a file and show a picture in the HTML, with nothing but Node 20 or later.
//
//     MAIL_KEY=pb_… node examples/attach.mjs invoice.pdf logo.png

import { readFile } from "node:fs/promises";
import { basename } from "node:path";

const url = process.env.MAIL_URL ?? "http://127.0.0.1:8025";
const key = process.env.MAIL_KEY;

async function attachment(path, more) {
  return { filename: basename(path), content: await readFile(path, "base64"), ...more };
}

/** Says what to do if the service does not answer. */
function noAnswer(error) {
  console.error(`No answer from ${url} (${error.cause?.code ?? error.message}).`);
  console.error("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.");
  process.exit(1);
}

const [invoice, logo] = process.argv.slice(2);
if (!logo) {
  console.error("Name two files: node examples/attach.mjs invoice.pdf logo.png");
  process.exit(2);
}
const response = await fetch(`${url}/emails`, {
  method: "POST",
  headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
  body: JSON.stringify({
    from: "Shop <orders@example.com>",
    to: ["Ada <ada@example.net>"],
    subject: "Your invoice 1821",
    html: '<img src="cid:logo"><p>Your invoice is attached.</p>',
    attachments: [await attachment(invoice), await attachment(logo, { content_id: "logo" })],
    metadata: { invoice: "1821" },
    idempotencyKey: "invoice-1821",
  }),
}).catch(noAnswer);
const answer = await response.json();
if (!response.ok) throw new Error(`${answer.error.code}: ${answer.error.message}`);
console.log(answer.id);
