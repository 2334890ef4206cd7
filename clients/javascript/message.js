// What a handler calls and throws.

/** The message can never be handled: it is archived as rejected. */
export class Reject extends Error {}

/** Try again after so many seconds. */
export class Retry extends Error {
  constructor(seconds, reason = "the handler asked for another attempt") {
    super(reason);
    this.seconds = seconds;
  }
}

/** No signal came in time for waitForSignal(). */
export class SignalTimeout extends Error {}

/** The lock is gone: it was lost, or the message is parked. Nothing is to be settled. */
export class Gone extends Error {}

export const json = (value) => JSON.stringify(value ?? null);

/** Publish a message through a client or pool of pg, in its transaction; return its id. */
export async function publish(client, queue, message, options = {}) {
  const { delay = null, priority = 0, dedupKey = null, headers = null } = options;
  const values = [queue, json(message), delay, priority, dedupKey, headers && json(headers)];
  const sql = `select messages.publish($1, $2::jsonb, delay => make_interval(secs => $3),
    priority => $4, dedup_key => $5, headers => $6::jsonb) as id`;
  return (await client.query(sql, values)).rows[0].id;
}

/** The recorded calls of a handler; query returns the rows of a statement. */
export const steps = (query, id, token) => ({
  async step(name, run) {
    const [found] = await query("select value from messages.steps($1) where name = $2", [id, name]);
    if (found) return found.value;
    const sql = "select messages.step($1, $2, $3, $4::jsonb) as value";
    return (await query(sql, [id, token, name, json(await run())]))[0].value;
  },

  async sleep(name, seconds) {
    const sql = "select messages.sleep($1, $2, $3, delay => make_interval(secs => $4)) as is_over";
    if (!(await query(sql, [id, token, name, seconds]))[0].is_over) throw new Gone("parked");
  },

  async waitForSignal(name, signal, timeout = null) {
    const sql = "select * from messages.await_signal($1, $2, $3, $4, make_interval(secs => $5))";
    const [{ state, payload }] = await query(sql, [id, token, name, signal, timeout]);
    if (state === "parked") throw new Gone("parked");
    if (state === "timed_out") throw new SignalTimeout(`no signal ${signal} came in time`);
    return payload;
  },
});
