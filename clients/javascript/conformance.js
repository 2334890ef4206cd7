// A worker for the conformance suite: its handler does what the message tells it.
import { existsSync, writeFileSync } from "node:fs";
import process from "node:process";
import { setTimeout as wait } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Reject, Retry, Worker } from "./worker.js";

async function handle(told, message) {
  switch (told.do) {
    case "return":
      return told.value;
    case "fail":
      throw new Error(told.error);
    case "reject":
      throw new Reject(told.reason);
    case "retry":
      throw new Retry(told.seconds);
    case "wait":
      writeFileSync(`${told.file}.begun`, "");
      while (!existsSync(told.file)) await wait(50, null, { signal: message.signal });
      return null;
    case "publish":
      return message.publish(told.queue, told.message);
    case "step": {
      const value = await message.step(told.name, () => message.attempts);
      if (message.attempts === 1) throw new Error("only after the step");
      return value;
    }
    case "signal":
      return message.waitForSignal("answer", told.name);
  }
  throw new Reject(`nothing is known of ${told.do}`);
}

const string = { type: "string" };
const options = { dsn: string, queue: string, poll: string, grace: string };
const { dsn, queue, poll = 1, grace = 30 } = parseArgs({ options }).values;
await new Worker({ dsn, queue, poll: Number(poll), grace: Number(grace) }, handle).run();
process.exit();
