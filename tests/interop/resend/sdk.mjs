// Resend's official SDK for Node through pillarbox: every field, batches, lists, and its own errors.
//
// Arguments: the listener; one that loses the first answer; one whose queue fills. The keys are in
// RESEND_API_KEY and, for the last one, FULL_API_KEY.

import assert from "node:assert/strict";
import { Resend } from "resend";

const [base, lossy, full] = process.argv.slice(2);
const key = process.env.RESEND_API_KEY;
process.env.RESEND_BASE_URL = base;
const resend = new Resend();

const email = (more) => ({ from: "Ann <ann@example.com>", to: "bob@example.org", subject: "Hello", text: "Hi", ...more });

async function done(call) {
  const { data, error, headers } = await call;
  assert.equal(error, null, JSON.stringify(error));
  assert.ok(headers["x-request-id"]);
  return data;
}

async function refused(statusCode, name, call) {
  const { data, error, headers } = await call;
  assert.equal(data, null, `${name} is not refused`);
  assert.deepEqual([error.statusCode, error.name], [statusCode, name], error.message);
  return { ...error, headers };
}

const sent = await done(
  resend.emails.send(
    email({
      to: ["bob@example.org", "Eve <eve@example.org>"],
      cc: ["carol@example.org"],
      bcc: "dave@example.org",
      replyTo: ["desk@example.com", "ann@example.com"],
      subject: "node: every field",
      html: '<p>Hi</p><img src="cid:logo">',
      headers: { "X-Order": "1815", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click" },
      tags: [{ name: "kind", value: "receipt" }],
      attachments: [
        { filename: "bytes.txt", content: Buffer.from("bytes") },
        { filename: "base64.txt", content: Buffer.from("base64").toString("base64"), contentType: "text/plain" },
        { filename: "logo.png", content: Buffer.from("\x89PNG", "latin1"), contentId: "logo" },
      ],
    }),
  ),
);
const record = await done(resend.emails.get(sent.id));
assert.deepEqual([record.id, record.object, record.to.length, record.html], [sent.id, "email", 4, null]);
assert.ok(["queued", "sent"].includes(record.last_event), record.last_event);
assert.deepEqual(record.tags, [{ name: "kind", value: "receipt" }]);

assert.equal((await done(resend.batch.send([email(), email({ subject: "Second" })]))).data.length, 2);
const permissive = await done(resend.batch.send([email(), email({ subject: "" })], { batchValidation: "permissive" }));
assert.deepEqual([permissive.data.length, permissive.errors[0].index], [1, 1]);
await refused(422, "missing_required_field", resend.batch.send([email(), { to: "a@x.org" }]));
const options = { idempotencyKey: "node batch" };
const first = await done(resend.batch.send([email(), email()], options));
assert.deepEqual(await done(resend.batch.send([email(), email()], options)), first);
assert.notEqual(first.data[0].id, first.data[1].id);

const page = await done(resend.emails.list({ limit: 2 }));
assert.deepEqual([page.has_more, page.data.length], [true, 2]);
const older = await done(resend.emails.list({ limit: 100, after: page.data[1].id }));
assert.ok(older.data.some((one) => one.id === sent.id));
const newer = await done(resend.emails.list({ limit: 2, before: older.data[0].id }));
// They are sent meanwhile.
assert.deepEqual(newer.data.map((one) => one.id), page.data.map((one) => one.id));

await refused(422, "missing_required_field", resend.emails.send(email({ subject: undefined })));
await refused(403, "validation_error", resend.emails.send(email({ from: "ann@other.example" })));
const suppressed = await refused(422, "validation_error", resend.emails.send(email({ to: "gone@example.org" })));
assert.match(suppressed.message, /suppressed/);
const scheduled = await refused(422, "validation_error", resend.emails.send(email({ scheduledAt: "in 1 hour" })));
assert.match(scheduled.message, /scheduled_at/);
const path = [{ filename: "a.txt", path: "https://x" }];
await refused(422, "invalid_attachment", resend.emails.send(email({ attachments: path })));
await refused(400, "invalid_idempotency_key", resend.emails.send(email(), { idempotencyKey: "k".repeat(257) }));
await refused(404, "not_found", resend.emails.get("00000000-0000-7000-8000-000000000000"));
await refused(404, "not_found", resend.emails.attachments.list({ emailId: sent.id }));
await refused(404, "not_found", resend.suppressions.list());
await refused(405, "method_not_allowed", resend.emails.update({ id: sent.id, scheduledAt: "in 1 hour" }));
await refused(403, "invalid_api_key", new Resend("re_wrong").emails.send(email()));

// The answer to the first request is lost, and the client repeats it.
const lost = () => [email({ subject: "node: lost answer" }), { idempotencyKey: "node lost" }];
const client = new Resend(key, { baseUrl: lossy });
await refused(null, "application_error", client.emails.send(...lost()));
const repeated = await done(client.emails.send(...lost()));
assert.deepEqual(await done(resend.emails.send(...lost())), repeated);

const filling = new Resend(process.env.FULL_API_KEY, { baseUrl: full });
let answer;
for (let count = 0; count < 100 && !answer?.error; count += 1) {
  answer = await filling.emails.send(email({ text: "x".repeat(2000) }));
}
const { headers } = await refused(503, "application_error", answer);
assert.ok(Number(headers["retry-after"]) > 0);
const [waiting] = (await done(filling.emails.list({ limit: 1 }))).data;
assert.deepEqual(await done(filling.emails.cancel(waiting.id)), { object: "email", id: waiting.id });
assert.equal((await done(filling.emails.get(waiting.id))).last_event, "canceled");
console.log("all as expected");
