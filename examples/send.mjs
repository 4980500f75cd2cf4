// Send a message from Node 20 or later, with nothing but the built-in fetch.
//
//     MAIL_KEY=pb_… node examples/send.mjs

const url = process.env.MAIL_URL ?? "http://127.0.0.1:8025";
const key = process.env.MAIL_KEY;
const tries = 8;

async function call(method, path, body) {
  const response = await fetch(url + path, {
    method,
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(30_000),
  });
  return { response, answer: await response.json() };
}

/** Says what to do if the service does not answer. */
function noAnswer(error) {
  console.error(`No answer from ${url} (${error.cause?.code ?? error.message}).`);
  console.error("Check that pillarbox runs there. If it runs elsewhere, set MAIL_URL.");
  return {};
}

/** Sends a message and returns its id. Repeats the request if that is necessary. */
async function send(message) {
  for (let attempt = 0; attempt < tries; attempt++) {
    let pause = Math.min(60, 2 ** attempt) * Math.random();
    // If there is no answer, the same key makes a repeat safe.
    const { response, answer } = await call("POST", "/emails", message).catch(noAnswer);
    if (response?.ok) return answer.id;
    if (response && ![408, 500, 503].includes(response.status)) {
      throw new Error(`${answer.error.code}: ${answer.error.message}`);
    }
    pause += Number(response?.headers.get("Retry-After") ?? 0);
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
  }
  throw new Error("pillarbox did not confirm the message; keep it and try again later");
}

const id = await send({
  from: "Shop <orders@example.com>",
  to: ["Ada <ada@example.net>"],
  subject: "Your order 1818",
  text: "It is on its way.",
  idempotencyKey: "order-1818-shipped",
});
const { answer: message } = await call("GET", `/emails/${id}`).catch(noAnswer);
console.log(id, message?.status ?? "(status unknown)");
