// A worker for a queue of notifyq, see README.md. All behaviour is in SQL functions.
import os from "node:os";
import process from "node:process";
import { setTimeout as wait } from "node:timers/promises";
import pg from "pg";
import { Gone, json, publish, Reject, steps } from "./message.js";

export { publish, Reject, Retry, SignalTimeout } from "./message.js";

const CLAIM = `select id, lock_token, attempts, message, headers,
  extract(epoch from lock_expires_at - locked_at)::float8 as seconds
  from messages.claim(array[$1], $2, worker => $3)`;
const FINISH = "select messages.finish($1, $2, $3, $4, $5::jsonb) as is_held";
const RETRY = `select messages.retry($1, $2, make_interval(secs => $3), details => $4,
  error_type => $5, error => $4, traceback => $6) as is_held`;
const EXTEND = "select messages.extend($1, $2) as is_held";
const RELEASE = "select messages.release($1, $2) as is_held";

const text = (value) => String(value).replaceAll("\0", "");
const isDisconnected = (error) =>
  !(error instanceof pg.DatabaseError) || /^(08|57P)/.test(error.code);

export class Worker {
  #running = new Map();
  #isStopping = false;
  #isWoken = false;
  #wake = () => {};
  #listener = null;

  constructor({ dsn, queue, concurrency = 10, poll = 1, grace = 30, log = console.error }, handler) {
    Object.assign(this, { dsn, queue, concurrency, poll, grace, log, handler });
    this.name = `${os.hostname()}:${process.pid}:${Math.random().toString(36).slice(2, 8)}`;
    this.pool = new pg.Pool({ connectionString: dsn, max: 4, keepAlive: true });
    this.pool.on("error", (error) => log(`a connection ended: ${error.message}`));
  }

  async run() {
    const stop = () => this.stop();
    process.once("SIGTERM", stop);
    const maintain = () => this.#query("select messages.maintain()", []).catch(() => {});
    const maintenance = setInterval(maintain, 1000);
    while (!this.#isStopping) {
      this.#isWoken = false;
      try {
        await this.#listen(); // before the claim: nothing is missed between the two
        const free = this.concurrency - this.#running.size;
        const rows = free && (await this.#query(CLAIM, [this.queue, free, this.name]));
        for (const row of rows || []) this.#running.set(row.id, this.#handle(row));
        await this.#sleep(this.poll);
      } catch (error) {
        this.log(`the claim failed: ${error.message}`);
        this.#isWoken = false;
        await this.#sleep(1);
      }
    }
    clearInterval(maintenance);
    process.off("SIGTERM", stop);
    const all = Promise.all([...this.#running.values()].map((it) => it.done));
    await Promise.race([all, wait(this.grace * 1000)]);
    for (const { abort, lock } of [...this.#running.values()]) {
      abort.abort(new Gone("the worker stops"));
      await this.#settle(RELEASE, lock).catch(() => {});
    }
    await Promise.all([this.#listener?.end(), this.pool.end()]);
  }

  stop() {
    this.#isStopping = true;
    this.#wakeUp();
  }

  #wakeUp() {
    this.#isWoken = true;
    this.#wake();
  }

  async #sleep(seconds) {
    if (this.#isWoken || this.#isStopping) return;
    const timer = new AbortController();
    const woken = new Promise((resolve) => (this.#wake = resolve));
    await Promise.race([woken, wait(seconds * 1000, null, timer).catch(() => {})]);
    timer.abort();
  }

  async #listen() {
    if (this.#listener) return;
    const listener = new pg.Client({ connectionString: this.dsn, keepAlive: true });
    listener.on("error", (error) => this.log(`the listening connection: ${error.message}`));
    listener.on("end", () => {
      this.#listener = null;
      this.#wakeUp();
    });
    listener.on("notification", ({ payload }) => {
      if (payload.startsWith(`${this.queue}:`)) this.#wakeUp();
    });
    await listener.connect();
    await listener.query("listen new_message");
    this.#listener = listener;
  }

  // Every call shows the token of the lock: it can be repeated after a lost connection.
  async #query(sql, values, tries = 1) {
    for (let pause = 0.1; ; pause *= 3) {
      try {
        return (await this.pool.query(sql, values)).rows;
      } catch (error) {
        if (error.code === "NQ011") throw new Gone("the lock was lost");
        if (!isDisconnected(error) || --tries < 1) throw error;
        await wait(pause * 1000);
      }
    }
  }

  async #settle(sql, values) {
    if (!(await this.#query(sql, values, 6))[0].is_held) throw new Gone("the lock was lost");
  }

  #handle({ id, lock_token: token, attempts, message, headers, seconds }) {
    const [lock, abort] = [[id, token], new AbortController()];
    const extend = () => this.#settle(EXTEND, lock).catch((e) => e instanceof Gone && abort.abort(e));
    const heartbeat = setInterval(extend, (seconds * 1000) / 3);
    const context = { id, attempts, headers, signal: abort.signal };
    context.publish = (...values) => publish(this.pool, ...values);
    Object.assign(context, steps((sql, values) => this.#query(sql, values, 6), id, token));
    const done = (async () => this.handler(message, context))()
      .then((result) => this.#settle(FINISH, [...lock, "success", null, json(result)]))
      .catch((error) => abort.signal.aborted || this.#fail(lock, error))
      .catch((error) => this.log(`message ${id}: ${error.message}`))
      .finally(() => {
        clearInterval(heartbeat);
        this.#running.delete(id);
        this.#wakeUp();
      });
    return { abort, lock, done };
  }

  #fail(lock, error) {
    if (error instanceof Gone) throw error;
    if (error instanceof Reject) {
      return this.#settle(FINISH, [...lock, "rejected", text(error.message), null]);
    }
    const { name = "Error", message = error, stack = "", seconds = null } = error ?? {};
    return this.#settle(RETRY, [...lock, seconds, text(message), text(name), text(stack)]);
  }
}
