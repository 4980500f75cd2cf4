// First the message of the recipe, then one with alternatives and an attachment over the same
// transport. Prints the bytes of the second, as base64.
RECIPE

import { Transform } from "node:stream";

const given = [];
transport.use("stream", (mail, done) => {
  const keep = (chunk, _encoding, next) => {
    given.push(chunk);
    next(null, chunk);
  };
  mail.message.transform(() => new Transform({ transform: keep }));
  done();
});
await transport.sendMail({
  from: "Jürgen Groß <orders@example.com>",
  to: ["Bob <bob@example.org>"],
  cc: "cy@example.org",
  bcc: "hidden@example.org",
  subject: "Grüße ✉",
  text: "Grüße\n.\n..\nFrom here on\n",
  html: "<p>Grüße</p>",
  headers: { "X-SES-CONFIGURATION-SET": "other" },
  attachments: [
    {
      filename: "résumé.pdf",
      content: Buffer.from(Array.from({ length: 5120 }, (_, n) => n % 256)),
      contentType: "application/pdf",
    },
  ],
});
transport.close();
console.log(Buffer.concat(given).toString("base64"));
