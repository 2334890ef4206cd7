"""A handler with steps, as a worker runs it that is killed after each step that it records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from chaos.clients import Client, Lock
from notifyq.chaos.history import digest
from support.database import value

_RECORDED = "select * from notifyq.recorded_steps($1, $2)"
_RECORD = """
select state from notifyq.record_step($1, $2, $3, to_jsonb($4::bigint), child_id => $4)
"""
_NOW = timedelta(0)


class EndedError(Exception):
    """The worker is killed, or the message is parked."""


class Call:
    """One call of the handler, of a parent or of its child."""

    def __init__(self, client: Client, lock: Lock) -> None:
        self._client = client
        self._session = client.session
        self._lock = lock
        self._held = lock.id, lock.lock_token

    async def run(self) -> bool:
        """Whether the message is settled: else the worker is killed, or it is parked."""
        try:
            found = await self._session.fetch(_RECORDED, *self._held)
            self._recorded = {row["name"]: row["value"] for row in found if row["state"]}
            is_child = "parent" in self._lock.message
            await (self._child() if is_child else self._parent(self._lock.message["key"]))
        except EndedError:
            return False
        return await self._client.finish(self._lock)

    async def _parent(self, key: str) -> None:
        if "charge" not in self._recorded:
            call = self._client.begin("step", id=self._lock.id, step="charge")
            await self._session.execute(_RECORD, *self._held, "charge", 1)
            call.ok()
            raise EndedError
        if "child" not in self._recorded:
            await self._publish({"key": f"{key} child", "parent": self._lock.id, "name": key})
            raise EndedError
        await self._nap()
        await self._receive("first", [f"{key} go"])
        await self._receive("second", [f"{key} go"])
        await self._receive("all", [key])
        # The signal is there: the deadline does not count.
        await self._receive("late", [f"{key} no", key], _NOW)
        await self._receive("never", [f"{key} no"], _NOW)
        await self._wait("end", "await_end($1, $2, $3, $4)", [self._recorded["child"]])

    async def _child(self) -> None:
        if "nap" in self._recorded:
            return
        name, parent = self._lock.message["name"], self._lock.message["parent"]
        signals = (
            ("first", f"{name} go", parent),
            ("second", f"{name} go", parent),
            ("all", name, None),
        )
        for payload, signal, to in signals:
            call = self._client.begin("signal", name=signal, to=to, payload=payload)
            await value(self._session, "signal", name=signal, payload=payload, id=to)
            call.ok()
        # The parent, which is older, is claimed before: it waits for the end when that comes.
        await self._nap()

    async def _nap(self) -> None:
        await self._wait("nap", "sleep($1, $2, $3, delay => '1 ms')")

    async def _publish(self, child: dict[str, Any]) -> None:
        call = self._client.begin(
            "publish", key=child["key"], queue="default", digest=digest(child), parent=self._lock.id
        )
        async with self._session.transaction():
            id_ = await value(self._session, "publish", queue="default", message=child)
            await self._session.execute(_RECORD, *self._held, "child", id_)
        call.ok(id=id_)

    async def _receive(
        self, step: str, names: Sequence[str], timeout: timedelta | None = None
    ) -> None:
        await self._wait(step, "await_any($1, $2, $3, $4, $5)", names, timeout)

    async def _wait(self, step: str, function: str, *arguments: Any) -> None:
        """Call what parks the message; end where it does, and where it is new that it is over."""
        is_new = step not in self._recorded
        signals = arguments[0] if "any" in function else []
        call = self._client.begin(
            "release", id=self._lock.id, lock_token=self._lock.lock_token, status="released",
            step=step, signals=signals,
        )  # fmt: skip
        [row, *_] = await self._session.fetch(
            f"select * from messages.{function}", *self._held, step, *arguments
        )
        match row[0]:
            case False | "parked":
                call.ok(held=True)
                raise EndedError
            case "received":
                call.fail(received=[row["signal"], row["payload"]])
            case state:
                call.fail(timed_out=is_new and state == "timed_out")
        if is_new:
            raise EndedError
