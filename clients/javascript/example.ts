import { Reject, Retry, Worker, publish } from "notifyq";
import pg from "pg";

type Invoice = { order_id: number };

const worker = new Worker(
  { dsn: process.env.NOTIFYQ_DSN ?? "", queue: "billing", concurrency: 5 },
  async (invoice: Invoice, message) => {
    if (invoice.order_id < 0) throw new Reject("there is no such order");
    const number: string = await message.step("number", () => `R-${invoice.order_id}`);
    if (message.signal.aborted) throw new Retry(60);
    await message.publish("mail", { number }, { delay: 5 });
    return { number };
  },
);
await worker.run();

const client = new pg.Client();
const id: string = await publish(client, "billing", { order_id: 1 }, { dedupKey: "order 1" });
// @ts-expect-error a queue has a name
await publish(client, 1, id);
process.exit();
