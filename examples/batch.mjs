// Send messages together, and see which of them are refused, with Node 20 or later.
//
//     MAIL_KEY=pb_… node examples/batch.mjs

const url = process.env.MAIL_URL ?? "http://127.0.0.1:8025";
const key = process.env.MAIL_KEY;
const tries = 8;

/** Says what to do if the service does not answer. The same keys make a repeat safe. */
function noAnswer(error) {
  console.error(`No answer from ${url} (${error.cause?.code ?? error.message}).`);
  console.error("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.");
}

/** Sends up to 100 messages, each with a key. Returns one answer for each, in the same order. */
async function sendAll(messages) {
  for (let attempt = 0; attempt < tries; attempt++) {
    let pause = Math.min(60, 2 ** attempt) * Math.random();
    const response = await fetch(`${url}/emails/batch`, {
      method: "POST",
      headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
      body: JSON.stringify({ emails: messages, partial: true }),
      signal: AbortSignal.timeout(60_000),
    }).catch(noAnswer);
    const answer = await response?.json().catch(noAnswer);
    if (response?.ok && answer) return answer.emails;
    if (answer && ![408, 500, 503].includes(response.status)) {
      throw new Error(`${answer.error.code}: ${answer.error.message}`);
    }
    pause += Number(response?.headers.get("Retry-After") ?? 0);
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
  }
  throw new Error("pillarbox did not confirm the messages; keep them and try again later");
}

const message = (order, to) => ({
  from: "Shop <orders@example.com>",
  to: [to],
  subject: `Your order ${order}`,
  text: "It is on its way.",
  idempotencyKey: `order-${order}-shipped`,
});

const messages = [message(1828, "ada@example.net"), message(1829, "no address")];
for (const [index, answer] of (await sendAll(messages)).entries()) {
  const { subject } = messages[index];
  if (answer.error) console.log(`${subject} is refused: ${answer.error.message}`);
  else console.log(`${subject} is ${answer.id}`);
}
