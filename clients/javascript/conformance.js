// A worker for the conformance suite: its handler follows the payload.
import { existsSync, writeFileSync } from "node:fs";
import process from "node:process";
import { setTimeout as wait } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Reject, Retry, Worker } from "./worker.js";

async function handle(payload, message) {
  switch (payload.do) {
    case "return":
      return payload.value;
    case "fail":
      throw new Error(payload.error);
    case "reject":
      throw new Reject(payload.reason);
    case "retry":
      throw new Retry(payload.seconds);
    case "wait":
      writeFileSync(`${payload.file}.begun`, "");
      while (!existsSync(payload.file)) await wait(50, null, { signal: message.signal });
      return null;
    case "publish":
      return message.publish(payload.queue, payload.message);
    case "step": {
      const value = await message.step(payload.name, () => message.attempts);
      if (message.attempts === 1) throw new Error("only after the step");
      return value;
    }
    case "signal":
      return message.waitForSignal("answer", payload.name);
  }
  throw new Reject(`nothing is known of ${payload.do}`);
}

const string = { type: "string" };
const options = { dsn: string, queue: string, poll: string, grace: string };
const { dsn, queue, poll = 1, grace = 30 } = parseArgs({ options }).values;
await new Worker({ dsn, queue, poll: Number(poll), grace: Number(grace) }, handle).run();
process.exit();
