"""A wait beside what ends it, in every order of their steps: nothing is missed, nothing doubled."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import asyncpg
import pytest

from notifyq import LockNotHeldError, MessageNotFoundError
from support.database import Connect, Connection, publish, rows, value

Isolation = str
Order = tuple[str, ...]
# What each session does in its transaction: `look` fixes its snapshot where the isolation has one,
# `act` is the call, `check` what it runs at its commit.
STEPS = {
    "read committed": ("act", "check", "commit"),
    "repeatable read": ("look", "act", "check", "commit"),
}
SHORT = ("act", "commit")
CALLS = {
    "wait": "await_signal({id}, {token}, '{step}', '{name}', {timeout})",
    "wait for any": "await_any({id}, {token}, '{step}', '{{other,{name}}}', {timeout})",
    "wait for ends": "await_end({id}, {token}, '{step}', '{{{children[0]},{children[1]}}}')",
    "signal": "signal('{name}', '1')",
    "signal 2": "signal('{name}', '2')",
    "signal to it": "signal('{name}', '1', {id})",
    "signal 2 to it": "signal('{name}', '2', {id})",
    "cancel": "cancel({id}, running => true)",
    "end": "finish({children[0]}, {tokens[0]})",
    "end 2": "finish({children[1]}, {tokens[1]})",
}


@dataclass(frozen=True)
class Race:
    """How the message stands before, the sessions, and what three waits may then receive.

    The first wait is that of the race; a second and a third one follow, which end at once.
    """

    before: str
    sessions: Sequence[str]
    found: frozenset[str]


def race(before: str, sessions: str, found: str) -> Race:
    return Race(before, sessions.split(" + "), frozenset(found.split(" | ")))


SIGNALS = {
    "first call": race("locked", "wait + signal", "1 1 1"),
    "second call": race("woken", "wait + signal", "1 1 1"),
    "second call, signal to the message": race("woken", "wait + signal to it", "1 - -"),
}
RACES = {
    "one of two signals": race("locked", "wait for any + signal", "1 1 1"),
    "first call, signal to the message": race("locked", "wait + signal to it", "1 - -"),
    "after the deadline": race("overdue", "wait + signal", "1 1 1 | - 1 1"),
    "after the deadline, signal to the message": race(
        "overdue", "wait + signal to it", "1 - - | - 1 -"
    ),
    "at the deadline": race("due", "wait + signal", "1 1 1 | - 1 1"),
    "at the deadline, signal to the message": race("due", "wait + signal to it", "1 - - | - 1 -"),
    "two signals": race("locked", "wait + signal + signal 2", "1 1 1"),
    "two signals to the message": race(
        "woken", "wait + signal to it + signal 2 to it", "1 2 - | 2 1 -"
    ),
    "a signal to the message before one to all": race(
        "woken", "wait + signal to it + signal 2", "1 2 2 | 2 1 2"
    ),
    "cancel": race("locked", "wait + cancel", "gone"),
    "cancel the second call": race("woken", "wait + cancel", "gone"),
    "cancel what is parked": race("parked", "cancel + signal", "gone"),
    "cancel what is parked, signal to the message": race("parked", "cancel + signal to it", "gone"),
    "ends": race("locked", "wait for ends + end + end 2", "done"),
    "ends, second call": race("woken", "wait for ends + end + end 2", "done"),
}
# A function, what is replaced in it, and the race that shows it.
MUTANTS = {
    "signals are not checked": (
        "maintain_signals", "where s.is_new order by", "where false order by", "first call",
    ),
    "waits are not checked": (
        "maintain_signals", "where w.is_new\n      order by", "where false\n      order by",
        "first call",
    ),
    "a wait looks at its deadline first": (
        "wait_for_signal", "if v_signal.id is not null then\n    state",
        "if v_step.due_at > clock_timestamp() and v_signal.id is not null then\n    state",
        "after the deadline",
    ),
    "a signal stays": (
        "wait_for_signal", "and s.message_id is not null", "and false",
        "two signals to the message",
    ),
    "a wait does not lock what it waits for": (
        "add_end_waits", "perform notifyq.predecessors(ids, 'run');", "", "ends",
    ),
}  # fmt: skip


def merged(sequences: Sequence[Order]) -> Iterator[Order]:
    """Yield the steps of all sequences in every order."""
    if not any(sequences):
        yield ()
    for n, sequence in enumerate(sequences):
        if sequence:
            for rest in merged([*sequences[:n], sequence[1:], *sequences[n + 1 :]]):
                yield (sequence[0], *rest)


def fixes_late(before: str, step: str) -> bool:
    """Whether a snapshot follows what it cannot see: it would be the same one step earlier."""
    is_hidden = before not in {"maintain", "wait look"} and not before.endswith("commit")
    return step.endswith("look") and is_hidden


def orders(sessions: Sequence[str], steps: Sequence[Order]) -> Iterator[Order]:
    """Yield the steps of all in every order that matters, with maintenance between any two.

    It only concerns signals.
    """
    sequences = [
        tuple(f"{session} {step}" for step in each)
        for session, each in zip(sessions, steps, strict=True)
    ]
    for steps_ in merged(sequences):
        first = [steps_.index(f"{session} act") for session in sessions[1:]]
        if len(sessions) > 2 and first != sorted(first):
            continue  # those beside the wait are alike
        if not any(session.startswith("signal") for session in sessions):
            yield steps_
            continue
        for at in range(1, len(steps_)):
            order = (*steps_[:at], "maintain", *steps_[at:])
            if not any(fixes_late(*two) for two in pairwise(order)):
                yield order


class Stage:
    """A message, and sessions whose steps run one after the other, and may wait for locks."""

    def __init__(self, admin: Connection, connections: Sequence[Connection]) -> None:
        self.admin = admin
        self.connections = connections
        self.name = 0

    async def prepare(self, race: Race) -> None:
        """Publish a message, and let it stand as the race wants it."""
        self.wait = race.sessions[0] if race.sessions[0].startswith("wait") else "wait"
        self.name += 1
        self.step, self.timeout = "wait", "null"
        [self.id] = await publish(self.admin, 1)
        if "ends" in self.wait:
            await publish(self.admin, 2, "child")
            children = await rows(self.admin, "claim", queues=["child"], quantity=2)
            self.children = [row["id"] for row in children]
            self.tokens = [row["lock_token"] for row in children]
        await self.claim(self.admin)
        if race.before == "locked":
            return
        self.timeout = "'1 hour'"
        await self.call(self.admin, self.wait)
        await self.maintain()
        if race.before in {"overdue", "due"}:
            await self.admin.execute("update notifyq.step set due_at = now() - interval '1 s'")
        if race.before != "parked":
            await value(self.admin, "run_now", id=self.id)
        if race.before in {"woken", "overdue"}:
            await self.claim(self.admin)

    async def claim(self, connection: Connection) -> bool:
        found = await rows(connection, "claim", queues=["default"])
        self.token = found[0]["lock_token"] if found else 0
        return bool(found)

    async def call(self, connection: Connection, call: str) -> Any:
        return await connection.fetchrow(
            f"select * from messages.{CALLS[call].format_map(vars(self))}"
        )

    async def maintain(self) -> None:
        # Twice: what it notes the first time must not make it forget the second time.
        for _ in range(2):
            await self.admin.execute("select notifyq.maintain_signals(1000)")

    async def run(self, race: Race, order: Order, isolations: Sequence[Isolation]) -> str:
        """Run the steps in this order; say what the waits receive in the end."""
        await self.prepare(race)
        self.state, self.is_missed = "parked", False
        self.committed: set[str] = set()
        self.failed: set[str] = set()
        of = dict(zip(race.sessions, self.connections, strict=False))
        of["maintain"] = self.connections[-1]
        for session, isolation in zip(race.sessions, isolations, strict=True):
            await of[session].execute(f"begin isolation level {isolation}")
        last: dict[str, asyncio.Task[None]] = {}
        for step in order:
            session, _, act = step.rpartition(" ") if step != "maintain" else (step, "", step)
            doing = self.do(of[session], session, act, last.get(session))
            last[session] = asyncio.create_task(doing)
            await self.until_blocked({of[each]: task for each, task in last.items()})
        await asyncio.gather(*last.values())
        await self.maintain()
        return "missed" if self.is_missed else await self.found()

    async def until_blocked(self, tasks: "dict[Connection, asyncio.Task[None]]") -> None:
        """Wait until each session has done its steps, or waits for a lock."""
        query = (
            "select count(*) from pg_stat_activity "
            "where pid = any ($1) and wait_event_type = 'Lock'"
        )
        while running := {it: task for it, task in tasks.items() if not task.done()}:
            await asyncio.wait(running.values(), timeout=0.01)
            left = [it.get_server_pid() for it, task in running.items() if not task.done()]
            if left and await self.admin.fetchval(query, left) == len(left):
                return

    async def do(
        self, connection: Connection, session: str, act: str, before: "asyncio.Task[None] | None"
    ) -> None:
        if before is not None:
            await before
        try:
            if session not in self.failed:
                await self.act(connection, session, act)
        except (LockNotHeldError, MessageNotFoundError):
            self.failed.add(session)
            await connection.execute("rollback")

    async def act(self, connection: Connection, session: str, act: str) -> None:
        match act:
            case "look":
                await connection.execute("select count(*) from notifyq.signal")
            case "check":
                await connection.execute("set constraints all immediate")
            case "commit":
                await connection.execute("commit")
                self.committed.add(session)
            case "maintain":
                for _ in range(2):
                    await connection.execute("select notifyq.maintain_signals(1000)")
            case _ if session == self.wait:
                await self.call_wait(connection)
            case _:
                await self.call(connection, session)

    async def call_wait(self, connection: Connection) -> None:
        is_sent = any(session.startswith("signal") for session in self.committed)
        if not self.token and not await self.claim(connection):
            return  # it is woken at this moment
        try:
            self.state = (await self.call(connection, self.wait))["state"]
        except asyncpg.SerializationError:
            # Maintenance has written the signal since the snapshot: the caller tries again.
            await connection.execute("rollback; begin")
            self.state = (await self.call(connection, self.wait))["state"]
        isolation = await connection.fetchval("show transaction_isolation")
        self.is_missed = is_sent and isolation == "read committed" and self.state != "received"

    async def found(self) -> str:
        """What the wait and two more receive; or `parked`, `gone`."""
        live = "select exists (select from messages.message where id = $1)"
        if not await self.admin.fetchval(live, self.id):
            for table in ("step", "signal_wait", "end_wait"):
                left = f"select count(*) from notifyq.{table} where message_id = $1"
                assert await self.admin.fetchval(left, self.id) == 0, table
            return "gone"
        found = []
        if self.state == "parked" and not await self.claim(self.admin):
            await value(self.admin, "cancel", id=self.id)
            return "parked"
        for self.step in ("wait", "next", "last"):
            row = await self.call(self.admin, self.wait)
            if row["state"] not in {"received", "timed_out"}:
                found.append(row["state"])
                break
            found.append("-" if row["state"] == "timed_out" else str(row[1]))
            self.timeout = "'0'"
        await value(self.admin, "cancel", id=self.id, running=True)
        return " ".join(found)

    async def wrong(
        self, race: Race, isolations: Sequence[Isolation]
    ) -> AsyncIterator[tuple[str, Order]]:
        """Run the race in every order; yield the orders with an end that it must not have."""
        steps = [STEPS[it] for it in isolations] if len(isolations) == 2 else [SHORT] * 3
        for order in orders(race.sessions, steps):
            found = await self.run(race, order, isolations)
            if found not in race.found:
                yield found, order


@pytest.fixture
async def stage(connection: Connection, connect: Connect) -> Stage:
    await value(connection, "create_queue", name="child")
    return Stage(connection, [await connect() for _ in range(4)])


@pytest.mark.parametrize("kind", SIGNALS)
@pytest.mark.parametrize("isolations", list(product(STEPS, STEPS)), ids="-".join)
async def test_no_order_misses_the_signal(
    stage: Stage, kind: str, isolations: tuple[Isolation, ...]
) -> None:
    assert [it async for it in stage.wrong(SIGNALS[kind], isolations)] == []


@pytest.mark.parametrize("kind", RACES)
async def test_no_order_has_another_end(stage: Stage, kind: str) -> None:
    race = RACES[kind]
    isolations = ["read committed"] * len(race.sessions)
    assert [it async for it in stage.wrong(race, isolations)] == []


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_orders_find_a_mistake(stage: Stage, mutant: str) -> None:
    function, old, new, kind = MUTANTS[mutant]
    text = await stage.admin.fetchval(
        "select pg_get_functiondef(oid) from pg_proc where proname = $1", function
    )
    assert text.count(old) == 1
    await stage.admin.execute(text.replace(old, new))
    race = (SIGNALS | RACES)[kind]
    isolations = ["read committed"] * len(race.sessions)
    assert await anext(stage.wrong(race, isolations), None)
