// Graphile Worker: `prepare` installs its schema and prints how to publish; `work` runs a worker,
// `work batched` one with a local queue and completions in batches, `work default` one without settings.
import process from "node:process";
import { performance } from "node:perf_hooks";
import { Logger, makeWorkerUtils, run, WorkerPreset } from "graphile-worker";

const connectionString = process.env.BENCH_DSN;
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});
const concurrentJobs = 24;

async function prepare() {
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  await utils.release();
  const spec = `json_populate_record(null::graphile_worker.job_spec,
    ('{"identifier": "bench", "payload": ' || @payload@ || '}')::json)`.replace(/\s+/g, " ");
  return {
    publish: "select graphile_worker.add_job('bench', @payload@::json)",
    bulk: `select count(*) from graphile_worker.add_jobs(array(select ${spec} from generate_series(1, @n@)))`,
    waiting: "graphile_worker._private_jobs",
    tables: "graphile_worker._private_jobs",
  };
}

async function work(how) {
  const batching = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  await run({
    preset: {
      extends: [WorkerPreset],
      worker: {
        connectionString,
        logger,
        ...(how === "default" ? {} : { concurrentJobs, maxPoolSize: concurrentJobs + 2 }),
        ...(how === "batched" ? batching : {}),
      },
    },
    taskList: {
      bench: async (payload) => {
        if (payload.n === undefined) return;
        const begun = (performance.timeOrigin + performance.now()) / 1000;
        process.stdout.write(`BENCH ${process.pid} ${payload.n} ${begun}\n`);
      },
    },
  });
}

const [what, how] = process.argv.slice(2);
if (what === "prepare") console.log(JSON.stringify(await prepare()));
else await work(how);
