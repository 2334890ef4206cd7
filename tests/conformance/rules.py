"""The rules for workers. Each judges by the database only; its docstring is its line of output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg

from .client import HOUR, BrokenRuleError, Client, client, require

# What breaks out of quotes of SQL, shells and line protocols.
TRICKY = {"text": 'O\'Neil "$(id)" | \\n\n\t$$ ünï €', "list": [1, None, True, {}], "": -0.5}


async def claim(it: Client) -> None:
    """It handles what was published before it started, under a name of its own."""
    await it.create_queue()
    ids = [await it.publish("return", value=number) for number in range(3)]
    await it.start()
    rows = [await it.finished(id_) for id_ in ids]
    require(all(row["handled_by"] for row in rows), "it claims without the name of a worker")
    require(all(row["attempts"] == 1 for row in rows), "a message was claimed more than once")


async def finish(it: Client) -> None:
    """It archives what the handler returned as the result of the message."""
    await it.create_queue()
    await it.start()
    values: list[Any] = [TRICKY, None, "text", 0, False, []]
    for value in values:
        row = await it.finished(await it.publish("return", value=value))
        require(row["result"] == value, f"the result is {row['result']!r}, not {value!r}")


async def publish(it: Client) -> None:
    """Its handlers publish messages."""
    await it.create_queue()
    target = f"{it.queue}_target"
    await it.connection.execute("select messages.create_queue($1)", target)
    await it.start()
    await it.finished(await it.publish("publish", queue=target, message=TRICKY))
    published = await it.connection.fetch(
        "select message from messages.message where queue = $1", target
    )
    payloads = [row["message"] for row in published]
    require(payloads == [TRICKY], f"the target has {payloads!r}, not the message")


async def reject(it: Client) -> None:
    """It archives what the handler rejects as rejected, with the reason, at the first attempt."""
    await it.create_queue(max_attempts=3, backoff="0 s")
    await it.start()
    row = await it.finished(await it.publish("reject", reason="no such order"), "rejected")
    require(row["attempts"] == 1, f"it took {row['attempts']} attempts")
    require("no such order" in (row["details"] or ""), f"the details are {row['details']!r}")


async def fail(it: Client) -> None:
    """A failure is retried until the last attempt, and each attempt is kept with its error."""
    await it.create_queue(max_attempts=3, backoff="0 s")
    await it.start()
    id_ = await it.publish("fail", error="out of paper")
    row = await it.finished(id_, "failed")
    require(row["attempts"] == 3, f"it failed after {row['attempts']} attempts, not 3")
    attempts = await it.connection.fetch("select * from messages.attempts($1)", id_)
    require(len(attempts) == 3, f"{len(attempts)} attempts are kept, not 3")
    for attempt in attempts:
        require(
            "out of paper" in (attempt["details"] or ""),
            f"an attempt is kept without its error: {attempt['details']!r}",
        )


async def retry(it: Client) -> None:
    """A handler delays the next attempt."""
    await it.create_queue(max_attempts=2)
    await it.start()
    id_ = await it.publish("retry", seconds=HOUR)

    async def is_put_back() -> Any:
        require(await it.archived(id_) is None, "the message is archived, not put back")
        row = await it.live(id_)
        return row if row and row["attempts"] and row["state"] != "locked" else None

    row = await it.until(is_put_back, "the message is not put back")
    wait = row["wait"].total_seconds()
    require(0.9 * HOUR < wait <= HOUR, f"the next attempt is {wait:.0f} s away, not an hour")


async def hold(it: Client) -> None:
    """A message stays live and locked until its handler has returned."""
    await it.create_queue()
    await it.start()
    id_, file, _ = await it.waiting("hold")
    file.touch()
    await it.finished(id_)


async def extend(it: Client) -> None:
    """A handler that takes longer than the lock keeps its lock."""
    await it.create_queue(lock_duration="5 s")
    await it.start()
    id_, file, first = await it.waiting("extend")

    async def is_over() -> bool:
        await it.connection.execute("select messages.maintain()")
        over = await it.connection.fetchval(
            "select clock_timestamp() > $1", first["lock_expires_at"]
        )
        row = await it.live(id_)
        held = row is not None and row["is_held"] and row["lock_token"] == first["lock_token"]
        require(held, "the lock was not extended in time")
        return bool(over)

    await it.until(is_over, "the clock of the database stands still")
    file.touch()
    row = await it.finished(id_)
    require(row["lock_token"] == first["lock_token"], "it was handled under a second lock")


async def token(it: Client) -> None:
    """A client that has lost its lock changes nothing, and goes on with other messages."""
    await it.create_queue()
    await it.start()
    id_, file, lost = await it.waiting("token")
    async with it.connection.transaction():
        released = await it.connection.fetchval(
            "select messages.release($1, $2)", id_, lost["lock_token"]
        )
        taken = await it.connection.fetchrow(
            "select * from messages.claim_id($1, worker => 'conformance')", id_
        )
    require(released and taken, "the suite could not take the lock")
    assert taken is not None
    file.touch()
    await it.finished(await it.publish("return", value=None))
    await it.stop()
    row = await it.live(id_)
    require(row is not None, "the message was archived without its lock")
    assert row is not None
    require(
        (row["state"], row["lock_token"]) == ("locked", taken["lock_token"]),
        "the lock of another worker was taken away",
    )


async def step(it: Client) -> None:
    """A recorded step is not recorded again in the next attempt: its first value counts."""
    await it.create_queue(max_attempts=2, backoff="0 s")
    await it.start()
    id_ = await it.publish("step", name="first")
    row = await it.finished(id_)
    steps = await it.connection.fetch("select * from messages.steps($1)", id_)
    recorded = [(it["name"], it["value"]) for it in steps]
    require(recorded == [("first", 1)], f"the recorded steps are {recorded!r}")
    require(row["attempts"] == 2, f"it took {row['attempts']} attempts, not 2")
    require(row["result"] == 1, f"the result is {row['result']!r}, not the recorded value 1")


async def signal(it: Client) -> None:
    """A handler that waits for a signal is parked without attempt, and receives its payload."""
    await it.create_queue()
    await it.start()
    id_ = await it.publish("signal", name=f"{it.queue}:go")
    await it.until(
        lambda: it.connection.fetch("select * from messages.parked(id => $1)", id_),
        "the message is not parked",
    )
    await it.connection.execute("select messages.signal($1, $2)", f"{it.queue}:go", TRICKY)
    row = await it.finished(id_)
    require(row["result"] == TRICKY, f"the result is {row['result']!r}, not the payload")
    require(row["attempts"] == 1, f"it used {row['attempts']} attempts")


async def notify(it: Client) -> None:
    """A notification wakes it at once: its next poll is an hour away."""
    await it.create_queue()
    await it.start(poll=HOUR)
    for number in range(3):
        await it.finished(await it.publish("return", value=number))
        await it.falls_idle()


async def poll(it: Client) -> None:
    """It finds messages without a notification, by polling."""
    await it.create_queue(notify="off")
    await it.start(poll=1)
    for number in range(3):
        await it.finished(await it.publish("return", value=number))
        await it.falls_idle()


async def reconnect(it: Client) -> None:
    """It outlives the end of all its sessions, listens again, and misses no message."""
    await it.create_queue()
    others = "select pid from pg_stat_activity where datname = current_database()"
    before = {row["pid"] for row in await it.connection.fetch(others)}
    await it.start(poll=HOUR)
    await it.finished(await it.publish("return", value=None))
    await it.falls_idle()
    ended = await it.connection.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and backend_type = 'client backend' "
        "and pid <> all ($1)",
        list(before),
    )
    require(ended, "it has no session: how does it listen?")
    for number in range(3):
        await it.finished(await it.publish("return", value=number))
        await it.falls_idle()


async def release(it: Client) -> None:
    """After SIGTERM it ends with code 0, and releases what it has not finished."""
    await it.create_queue()
    await it.start()
    id_, _, _ = await it.waiting("release")
    code = await it.stop()
    require(code == 0, f"it ended with code {code}")
    row = await it.live(id_)
    require(row is not None, "the message is archived")
    assert row is not None
    require(row["state"] == "waiting", f"the message is {row['state']}, not waiting")
    require(row["attempts"] == 0, "the interrupted attempt counts")


RULES: dict[str, Callable[[Client], Awaitable[None]]] = {
    rule.__name__: rule
    for rule in (
        claim, finish, publish, reject, fail, retry, hold, extend, token, step, signal, notify,
        poll, reconnect, release,
    )
}  # fmt: skip


async def judge(name: str, dsn: str, command: Sequence[str], *, patience: float) -> None:
    """Raise BrokenRuleError if the client breaks the rule of this name."""
    async with client(dsn, command, patience) as it:
        try:
            await RULES[name](it)
        except asyncpg.PostgresError as error:
            raise BrokenRuleError(f"the database refused the suite: {error}") from error
