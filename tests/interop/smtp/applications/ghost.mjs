// A mail as Ghost sends it by these settings. ghost/core/core/server/services/mail/ghost-mailer.js gives
// `mail.options` to @tryghost/nodemailer, which gives them to Nodemailer as they are
// (packages/nodemailer/lib/nodemailer.js of TryGhost/framework).
import assert from "node:assert";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const nodemailer = createRequire(`${process.env.NODEMAILER}/`)("nodemailer");
const { mail } = JSON.parse(`{${readFileSync(process.argv[2])}}`);
const { from, transport, options, ...others } = mail;
assert.deepEqual(others, {}, "settings that Ghost does not know");
assert.equal(transport.toLowerCase(), "smtp");
// Nodemailer ignores an option that it does not know.
const { host, port, secure, requireTLS, auth, ...unknown } = options;
assert.deepEqual(unknown, {}, "options that Nodemailer does not know");

const transporter = nodemailer.createTransport({ host, port, secure, requireTLS, auth });
await transporter.sendMail({
  from,
  headers: { Sender: from },
  to: "ada@example.net",
  subject: "Hello",
  html: "<p>Hi</p>",
  generateTextFromHTML: true,
  encoding: "base64",
});
