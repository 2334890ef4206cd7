"""Concurrent clients: a random storm from a seed, and schedules in a fixed order.

A fixed schedule only waits for events: a lock that expired by the clock of the server, or a session
that has its answer or waits for a lock of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

from chaos.clients import LONG, MAX_ATTEMPTS, SHORT, Client, Listener, Lock, Stage
from chaos.durable import Call
from chaos.mutants import GATE
from support.database import rows, until

Schedule: TypeAlias = "Callable[[Stage], Awaitable[None]]"

_PUBLISHERS, _WORKERS = 2, 4
_MESSAGES = 30
"""That each publisher publishes."""
_CALLS = 40
"""Of a handler with steps and its child; 20 are enough."""
_MAINTENANCE_EVERY = 0.01
"""Seconds."""


async def storm(stage: Stage) -> None:
    """Publishers, workers that dawdle, give up or come back, and a reaper, all at once."""
    publishers = [await stage.client(f"publisher-{number}") for number in range(_PUBLISHERS)]
    workers = [await stage.client(f"worker-{number}") for number in range(_WORKERS)]
    reaper = await stage.client("reaper")
    is_published, is_over = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_maintain(stage, reaper, is_over))
        async with asyncio.TaskGroup() as working:
            for worker in workers:
                working.create_task(_work(worker, is_published))
            async with asyncio.TaskGroup() as publishing:
                for publisher in publishers:
                    publishing.create_task(_publish(publisher))
            is_published.set()
        is_over.set()


async def zombies(stage: Stage) -> None:
    """A client settles under an expired lock after another one claimed the message."""
    zombie, heir = await stage.client("zombie"), await stage.client("heir")
    for op in ("finish", "extend", "release", "retry"):
        await zombie.publish()
        (late,) = await zombie.claim(SHORT)
        zombie.execute(late)
        await zombie.outlive(late)
        await heir.reap()
        (lock,) = await heir.claim(LONG)
        await getattr(zombie, op)(late)
        heir.execute(lock)
        await heir.finish(lock)


async def finish_while_reaping(stage: Stage) -> None:
    """A lock has expired; its holder finishes after the reaper has seen that."""
    worker, reaper = await stage.client("worker"), await stage.client("reaper")
    keeper = await stage.client("keeper")
    await stage.set_attempts(1)
    await worker.publish()
    (late,) = await worker.claim(SHORT)
    worker.execute(late)
    await worker.outlive(late)
    await keeper.session.execute("select pg_advisory_lock($1)", GATE)
    reaping = asyncio.create_task(reaper.reap())
    await _until_blocked_or_done(keeper, reaper, reaping)
    await worker.finish(late)
    await keeper.session.execute("select pg_advisory_unlock($1)", GATE)
    await reaping


async def two_claimers(stage: Stage) -> None:
    """Two claim the one message that there is, and the first has not yet committed."""
    first, second = await stage.client("first"), await stage.client("second")
    observer = await stage.client("observer")
    await first.publish()
    call = first.begin("claim")
    async with first.session.transaction():
        found = await first.claim_rows(LONG)
        claiming = asyncio.create_task(second.claim(LONG))
        await _until_blocked_or_done(observer, second, claiming)
    for client, locks in ((first, first.claimed(call, found)), (second, await claiming)):
        for lock in locks:
            client.execute(lock)
            await client.finish(lock)


async def notifications_only(stage: Stage) -> None:
    """A worker that never polls: each message needs a notification."""
    listener = Listener(await stage.client("listener"))
    await listener.listen()
    publisher = await stage.client("publisher")
    async with asyncio.TaskGroup() as group:
        group.create_task(listener.work())
        for _ in range(10):
            await publisher.publish()
        await publisher.session.execute("select pg_notify($1, '')", Listener.FENCE)
    stage.history("judge").note("deadline")


async def late_commit(stage: Stage) -> None:
    """Two messages fail permanently; the one with the lower id is committed last."""
    early, late = await stage.client("early"), await stage.client("late")
    await early.publish()
    await early.publish()
    (first,) = await late.claim()
    (second,) = await early.claim()
    call = late.begin("finish", id=first.id, lock_token=first.lock_token, status="failed")
    async with late.session.transaction():
        held = await late.session.fetchval(
            "select messages.finish($1, $2, 'failed')", first.id, first.lock_token
        )
        await early.finish(second, "failed")
        await stage.watcher.report()
    call.ok(held=held)


async def poison(stage: Stage) -> None:
    """A message that fails whenever it is tried, and is tried for as long as it is there."""
    worker = await stage.client("worker")
    await worker.publish()
    for _ in range(MAX_ATTEMPTS + 1):
        for lock in await worker.claim():
            worker.execute(lock)
            await worker.retry(lock)


async def old_transaction(stage: Stage) -> None:
    """A claim in a transaction that has begun before another got the message and lost it."""
    old, other = await stage.client("old"), await stage.client("other")
    await other.publish()
    call = old.begin("claim")
    async with old.session.transaction():
        await old.session.execute("select now()")
        (late,) = await other.claim(SHORT)
        await other.outlive(late)
        await other.reap()
        found = await old.claim_rows(LONG)
    for lock in old.claimed(call, found):
        old.execute(lock)
        await old.finish(lock)


async def steps(stage: Stage) -> None:
    """A parent waits for signals and the end of its child; each new step kills its worker."""
    worker = await stage.client("worker")
    await stage.set_attempts(_CALLS)
    await worker.publish()
    for _ in range(_CALLS):
        await worker.reap()
        if not await rows(worker.session, "message_list"):
            break
        locks = await worker.claim(SHORT)
        for lock in locks:
            worker.execute(lock)
            if not await Call(worker, lock).run():
                await worker.outlive(lock)
        if not locks:
            await worker.dawdle()


SCHEDULES: tuple[Schedule, ...] = (
    storm, zombies, finish_while_reaping, two_claimers, notifications_only, late_commit, poison,
    old_transaction, steps,
)  # fmt: skip


async def _publish(client: Client) -> None:
    for _ in range(_MESSAGES):
        await client.publish()


async def _maintain(stage: Stage, reaper: Client, is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        await reaper.reap()
        await stage.watcher.report()
        with suppress(TimeoutError):
            async with asyncio.timeout(_MAINTENANCE_EVERY):
                await is_over.wait()


async def _work(client: Client, is_published: asyncio.Event) -> None:
    """Settle what there is, some of it too late, and some of it again at the end."""
    again: list[Lock] = []
    found = True
    while found or not is_published.is_set():
        found = False
        for lock in await client.claim(client.chance.choice((SHORT, LONG)), quantity=2):
            found = True
            client.execute(lock)
            if client.chance.random() < 0.4:
                await client.dawdle()
            if client.chance.random() < 0.3:
                again.append(lock)
            await _settle(client, lock)
    for lock in again:
        await _settle(client, lock)


async def _settle(client: Client, lock: Lock) -> None:
    op = client.chance.choice(("finish", "finish", "finish", "release", "retry", "extend"))
    if op == "finish":
        await client.finish(lock, client.chance.choice(("success", "failed", "rejected")))
    elif op == "extend":
        await client.extend(lock, SHORT)
    else:
        await getattr(client, op)(lock)


async def _until_blocked_or_done(observer: Client, client: Client, call: asyncio.Task[Any]) -> None:
    """Wait until a call has its answer, or its session waits for a lock."""
    pid = client.session.get_server_pid()

    async def stands() -> bool:
        if call.done():
            return True
        return bool(
            await observer.session.fetchval(
                "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1", pid
            )
        )

    await until(stands, "the call is answered or waits for a lock")
