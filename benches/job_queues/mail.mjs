// The part that both job queues share: the HTTP server that accepts messages, and the call to SES.

import { randomUUID } from "node:crypto";
import { Agent, createServer } from "node:http";

import { SESv2Client, SendEmailCommand } from "@aws-sdk/client-sesv2";

// Calls at one time, as one organisation has at pillarbox by default.
export const CONCURRENCY = 128;

const ses = new SESv2Client({
  endpoint: process.env.SES_ENDPOINT,
  requestHandler: {
    connectionTimeout: 10_000,
    requestTimeout: 10_000,
    httpAgent: new Agent({ keepAlive: true, maxSockets: CONCURRENCY }),
  },
});

// Sends a message. The SDK itself makes up to three attempts.
export async function send(message) {
  const headers = Object.entries(message.headers ?? {});
  await ses.send(new SendEmailCommand({
    FromEmailAddress: message.from,
    Destination: { ToAddresses: message.to },
    ReplyToAddresses: message.reply_to && [message.reply_to],
    Content: {
      Simple: {
        Subject: { Data: message.subject, Charset: "UTF-8" },
        Body: {
          Html: message.html && { Data: message.html, Charset: "UTF-8" },
          Text: message.text && { Data: message.text, Charset: "UTF-8" },
        },
        Headers: headers.map(([Name, Value]) => ({ Name, Value })),
      },
    },
  }));
}

// Serves `POST /emails`, which answers 200 after `enqueue` has stored the job, and `GET /emails/ID`
// with the job's state.
export function serve(enqueue, state) {
  const server = createServer(async (request, response) => {
    const answer = (status, body) => {
      response.writeHead(status, { "Content-Type": "application/json" });
      response.end(JSON.stringify(body));
    };
    try {
      if (request.method === "GET") {
        const found = await state(request.url.slice("/emails/".length));
        return answer(found ? 200 : 404, { status: found });
      }
      const parts = [];
      for await (const part of request) parts.push(part);
      const message = JSON.parse(Buffer.concat(parts));
      if (!message.from || !message.to?.length || !message.subject) {
        return answer(422, { error: "from, to and subject are needed" });
      }
      const id = message.idempotencyKey ?? randomUUID();
      await enqueue(id, message);
      answer(200, { id });
    } catch (error) {
      console.error(error);
      answer(503, { error: "try again" });
    }
  });
  server.listen(Number(process.env.PORT), "127.0.0.1");
}
