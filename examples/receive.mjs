// Receive webhooks with Node 20 and the official library: npm install standardwebhooks
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.WEBHOOK_SECRET);
const seen = new Set(); // An event can arrive twice: in production, keep its id in your database.

createServer(async (request, response) => {
  try {
    const event = webhook.verify(await text(request), request.headers);
    if (!seen.has(event.id)) {
      seen.add(event.id);
      console.log(event.type, event.data.id);
    }
    response.writeHead(204).end();
  } catch {
    response.writeHead(400).end();
  }
}).listen(process.env.PORT ?? 4000, "127.0.0.1");
