// pg-boss: `prepare` installs its schema and prints how to publish; `work` runs workers.
import process from "node:process";
import { performance } from "node:perf_hooks";
import { PgBoss } from "pg-boss";
import { insertJobs } from "./node_modules/pg-boss/dist/plans.js";

const connectionString = process.env.BENCH_DSN;
const batchSize = 2000;
const isTuned = process.argv[3] !== "default";

async function prepare() {
  const boss = new PgBoss({ connectionString, supervise: false, schedule: false });
  boss.on("error", console.error);
  await boss.start();
  await boss.createQueue("bench", { notify: true });
  const { table } = await boss.getQueue("bench");
  await boss.stop({ graceful: false });
  // The library's own statement; `send` returns the id, `insert` of many does not.
  const insert = (json, returnId) =>
    insertJobs("pgboss", { table, name: "bench", returnId, notify: true })
      .replace("$1::text", () => json)
      .replace(/\s+/g, " ");
  return {
    publish: insert("json_build_array(json_build_object('data', @payload@::json))", true),
    bulk: insert(
      "(select json_agg(json_build_object('data', @payload@::json)) from generate_series(1, @n@))",
      false,
    ),
    waiting: "pgboss.job where name = 'bench' and state < 'completed'",
    tables: "pgboss.job",
  };
}

async function work() {
  const boss = new PgBoss({ connectionString, useListenNotify: isTuned, schedule: false });
  boss.on("error", console.error);
  await boss.start();
  const tuned = { batchSize, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  await boss.work("bench", isTuned ? tuned : {}, async (batch) => {
    const begun = (performance.timeOrigin + performance.now()) / 1000;
    for (const { data } of batch) {
      if (data.n !== undefined) process.stdout.write(`BENCH ${process.pid} ${data.n} ${begun}\n`);
    }
  });
}

if (process.argv[2] === "prepare") console.log(JSON.stringify(await prepare()));
else await work();
