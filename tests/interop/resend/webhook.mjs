// An endpoint that verifies with Resend's SDK and with svix's library, and prints what it is told.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { Resend } from "resend";
import { Webhook } from "svix";

const webhookSecret = process.env.WEBHOOK_SECRET;
const resend = new Resend("re_none");
const svix = new Webhook(webhookSecret);

createServer(async (request, response) => {
  const payload = await text(request);
  const header = (name) => request.headers[`svix-${name}`];
  try {
    const headers = { id: header("id"), timestamp: header("timestamp"), signature: header("signature") };
    const event = resend.webhooks.verify({ payload, headers, webhookSecret });
    assert.deepEqual(svix.verify(payload, request.headers), event);
    assert.equal(header("id"), request.headers["webhook-id"]);
    console.log(event.type, (event.data.to ?? []).join(), event.data.bounce?.type ?? "");
    response.writeHead(204).end();
  } catch (error) {
    console.log("refused", error.message);
    response.writeHead(400).end();
  }
}).listen(process.env.PORT, "127.0.0.1");
