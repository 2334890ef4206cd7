"""The base of the machine: a server, a model, and their comparison after each step."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Coroutine, Iterable
from typing import Any

import asyncpg
from hypothesis.stateful import RuleBasedStateMachine, invariant

from stateful.model import Archived, Live, Model, Policy
from support import databases
from support.database import Connection, open_session, rows, terminate, value

POLICIES = {
    "once": Policy(max_attempts=1, backs_off=False),
    "twice": Policy(max_attempts=2, backs_off=True),
    "often": Policy(max_attempts=4, backs_off=False),
}
# The contents of all tables, in one statement.
STATE = """
select json_build_object(
  'live', (
    select json_agg(json_build_array(m.id, m.queue, m.state, m.lock_token, m.attempts, m.priority,
      m.dedup_key, m.message, m.headers, m.type, m.locked_by, m.details,
      m.available_at <= clock_timestamp(),
      coalesce(m.lock_expires_at <= clock_timestamp(), false)) order by m.id)
    from messages.message as m
  ),
  'archive', (
    select json_agg(json_build_array(a.id, a.queue, a.status, a.lock_token, a.attempts,
      a.priority, a.dedup_key, a.message, a.headers, a.type, a.handled_by, a.details, a.result)
      order by a.id)
    from messages.message_archive as a
  ),
  'redriven', (
    select json_agg(json_build_array(r.archive_id, r.message_id) order by r.archive_id)
    from notifyq.redrive as r
  ),
  'queues', (
    select json_agg(json_build_array(q.name, q.paused, q.max_attempts) order by q.name)
    from messages.queue as q
  )
)::text
"""


EMPTY = """
delete from messages.message;
delete from messages.message_archive;
delete from notifyq.redrive;
delete from messages.queue;
select setval('messages.message_id_seq', 1, false);
"""


class Session:
    """Shared by machines that run one after the other: two sessions and an event loop."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.runner = asyncio.Runner()
        self.ours = self.run(self._open())
        self.other = self.run(self._open())
        self._runs = 0

    async def _open(self) -> Connection:
        # A statement that waits without end then fails, and the test does not hang.
        return await open_session(self.dsn, server_settings={"lock_timeout": "5s"})

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    def empty(self) -> None:
        """Delete all rows; truncate only sometimes, because it takes a hundred times as long."""
        self._runs += 1
        if self._runs % 100 == 0:
            self.run(self.ours.execute(databases.EMPTY))
        self.run(self.ours.execute(EMPTY))

    def crash(self) -> None:
        """End the other session from the server's side, and open another one."""
        self.run(terminate(self.ours, self.other))
        self.other.terminate()
        self.other = self.run(self._open())

    def close(self) -> None:
        for connection in (self.ours, self.other):
            self.run(connection.close(timeout=10))
        self.runner.close()


class Bench(RuleBasedStateMachine):
    """A server and a model of it."""

    session: Session

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.count = 0

    def call(self, function: str, **arguments: Any) -> Any:
        return self.session.run(value(self.session.ours, function, **arguments))

    def rows(self, function: str, **arguments: Any) -> list[asyncpg.Record]:
        found: list[asyncpg.Record] = self.session.run(
            rows(self.session.ours, function, **arguments)
        )
        return found

    def ids(self, function: str, **arguments: Any) -> list[int]:
        return [row[0] for row in self.rows(function, **arguments)]

    def known(self, pick: int) -> int:
        """An id: mostly of a locked message, or a live one, sometimes of a finished one or none."""
        live = sorted(self.model.live)
        locked = [id_ for id_ in live if self.model.live[id_].state == "locked"]
        ids = [*locked, *live, *locked, *sorted(self.model.published), 10**12]
        return ids[pick % len(ids)]

    def token(self, id_: int, shift: int) -> int:
        m = self.model.live.get(id_)
        return (m.token if m else 1) + shift

    def payload(self, content: Any) -> dict[str, Any]:
        self.count += 1
        return {"key": str(uuid.UUID(int=self.count)), "n": self.count % 5, "content": content}

    def keeps_others_waiting(self, queue: str, key: str | None) -> bool:
        """Whether an open transaction may have finished the message of this key."""
        return key is not None and self.model.keyed(queue, key) in self.model.held

    def later(self) -> Any:
        return self.session.run(self.session.ours.fetchval("select now() + interval '1 day'"))

    def compare_claimed(self, claimed: list[asyncpg.Record], expected: list[Live]) -> None:
        assert [(m["id"], m["lock_token"], m["attempts"]) for m in claimed] == [
            (m.id, m.token, m.attempts) for m in expected
        ]
        assert [m["message"] for m in claimed] == [m.message for m in expected]  # I7
        for m in claimed:
            assert m["lock_token"] > self.model.granted.get(m["id"], 0)  # I4

    def finished(self, pick: int) -> int:
        ids = [*sorted(self.model.archive), 10**12]
        return ids[pick % len(ids)]

    def variadic(self, function: str, ids: Iterable[int]) -> list[int]:
        found = self.session.run(
            self.session.ours.fetch(f"select messages.{function}(variadic $1::bigint[])", ids)
        )
        return [row[0] for row in found]

    def teardown(self) -> None:
        if self.model.open is not None:
            self.session.run(self.session.other.execute("rollback"))

    # What must hold after each step

    @invariant()
    def the_tables_are_the_model(self) -> None:
        if not self.model.queues and not self.model.published:
            return  # before the first rule
        state = json.loads(self.session.run(self.session.ours.fetchval(STATE)))
        model = self.model
        same("live", state["live"], [live_row(m) for _, m in sorted(model.live.items())])
        same("archive", state["archive"], [dead_row(a) for _, a in sorted(model.archive.items())])
        same("redriven", state["redriven"], [list(pair) for pair in sorted(model.redriven.items())])
        queues = [[name, q.paused, q.max_attempts] for name, q in sorted(model.queues.items())]
        same("queues", state["queues"], queues)

    @invariant()
    def the_guarantees_hold(self) -> None:
        model = self.model
        live, archive = model.live.keys(), model.archive.keys()
        # I1 and I2: the model has an id once in each, and the tables are the model.
        assert live | archive | model.gone == model.published
        assert not live & archive
        for m in model.live.values():
            assert m.token >= model.granted.get(m.id, 0)  # I4
            assert 0 <= m.attempts <= POLICIES[m.queue].max_attempts  # I6
        for id_, archived in model.archive.items():
            if archived.last.state == "locked":
                assert archived.last.token == model.granted[id_]  # I3


def same(what: str, found: list[list[Any]] | None, expected: list[list[Any]]) -> None:
    """Compare rows, and name those that differ."""
    rows = found or []
    if rows != expected:
        theirs = [row for row in rows if row not in expected]
        ours = [row for row in expected if row not in rows]
        raise AssertionError(f"{what}: the table has {theirs}, the model {ours}")


def live_row(m: Live) -> list[Any]:
    """A live message as STATE shows it."""
    return [*_common(m, m.state), m.locked_by, m.details, m.due, m.expired]


def dead_row(a: Archived) -> list[Any]:
    """An archived message as STATE shows it."""
    return [*_common(a.last, a.status), a.last.locked_by, a.details, a.result]


def _common(m: Live, state: str) -> list[Any]:
    numbers = (m.token, m.attempts, m.priority)
    return [m.id, m.queue, state, *numbers, m.dedup_key, m.message, m.headers, m.type]
