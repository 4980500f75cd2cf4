// A service for transactional email on Graphile Worker: `node graphile.mjs api` accepts, `… worker` sends.

import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";

import { CONCURRENCY, send, serve } from "./mail.mjs";

const pool = new pg.Pool({
  host: "127.0.0.1", port: Number(process.env.POSTGRES_PORT), user: "queue", database: "postgres",
});
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

if (process.argv[2] === "api") {
  await runMigrations({ pgPool: pool, logger });
  const enqueue = (id, message) => pool.query({
    name: "enqueue",
    text: "SELECT FROM graphile_worker.add_job('send', $1::json, job_key => $2)",
    values: [JSON.stringify(message), id],
  });
  const state = async (id) => {
    const { rows } = await pool.query(
      `SELECT CASE WHEN locked_at IS NOT NULL THEN 'active'
                   WHEN attempts >= max_attempts THEN 'failed' ELSE 'waiting' END AS state
       FROM graphile_worker.jobs WHERE key = $1`, [id]);
    return rows[0]?.state;
  };
  serve(enqueue, state);
} else {
  await run({
    pgPool: pool,
    logger,
    taskList: { send },
    preset: {
      worker: {
        concurrentJobs: CONCURRENCY,
        // What its documentation advises for many jobs a second.
        localQueue: { size: CONCURRENCY + 1 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
}
