import type { Client, Pool, PoolClient } from "pg";

/** What JSON can hold. Integers beyond 2^53 lose digits. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface WorkerOptions {
  /** postgresql://user:password@host/database */
  dsn: string;
  queue: string;
  /** How many messages are handled at the same time. Default: 10. */
  concurrency?: number;
  /** Seconds between two polls when no notification arrives. Default: 1. */
  poll?: number;
  /** Seconds that handlers have to end after stop(). Default: 30. */
  grace?: number;
  /** Receives lines of log. Default: console.error. */
  log?: (line: string) => void;
}

export interface PublishOptions {
  /** Seconds. */
  delay?: number;
  /** Larger first. Default: 0. */
  priority?: number;
  dedupKey?: string;
  headers?: { [name: string]: Json };
}

/** Beside the payload: the message, and what a handler does with it. */
export interface Context {
  /** A bigint, as text. */
  readonly id: string;
  /** The number of this attempt, from 1 on. */
  readonly attempts: number;
  readonly headers: { [name: string]: Json } | null;
  /** Aborted when the lock is lost, and when the worker stops before the handler has ended. */
  readonly signal: AbortSignal;
  /** Publish a message at once, on a connection of the worker. */
  publish(queue: string, message: Json, options?: PublishOptions): Promise<string>;
  /** Record what `run` returns: in later attempts it is returned, and `run` is not called. */
  step<T extends Json | void>(name: string, run: () => T | Promise<T>): Promise<T>;
  /** Sleep without lock, worker or attempt; the handler is called again afterwards. */
  sleep(name: string, seconds: number): Promise<void>;
  /** Wait for a signal, as sleep() does; throws SignalTimeout after so many seconds. */
  waitForSignal<T extends Json = Json>(name: string, signal: string, timeout?: number): Promise<T>;
}

/** Its result is archived with the message; an error is a failed attempt. */
export type Handler<T extends Json = any> = (
  message: T,
  context: Context,
) => Json | void | Promise<Json | void>;

export class Worker {
  constructor(options: WorkerOptions, handler: Handler);
  /** Handle messages until stop() or SIGTERM; then release what has not ended in the grace. */
  run(): Promise<void>;
  stop(): void;
}

/** The message can never be handled: it is archived as rejected, with the reason. */
export class Reject extends Error {}

/** Try again after so many seconds. */
export class Retry extends Error {
  constructor(seconds: number, reason?: string);
  readonly seconds: number;
}

/** No signal came in time for waitForSignal(). */
export class SignalTimeout extends Error {}

/** Publish a message in the transaction of a client, or through a pool; return its id. */
export function publish(
  client: Client | Pool | PoolClient,
  queue: string,
  message: Json,
  options?: PublishOptions,
): Promise<string>;
