// A service for transactional email on BullMQ: `node bullmq.mjs api` accepts, `… worker` sends.

import { Queue, Worker } from "bullmq";

import { CONCURRENCY, send, serve } from "./mail.mjs";

const connection = { host: "127.0.0.1", port: Number(process.env.REDIS_PORT), maxRetriesPerRequest: null };

if (process.argv[2] === "api") {
  const queue = new Queue("emails", {
    connection,
    defaultJobOptions: {
      // As in BullMQ's documentation, with five attempts instead of three.
      attempts: 5,
      backoff: { type: "exponential", delay: 1_000 },
      removeOnComplete: true,
    },
  });
  const enqueue = (id, message) => queue.add("send", message, { jobId: id });
  const state = async (id) => (await queue.getJob(id))?.getState();
  serve(enqueue, state);
} else {
  const worker = new Worker("emails", (job) => send(job.data), { connection, concurrency: CONCURRENCY });
  worker.on("error", console.error);
}
