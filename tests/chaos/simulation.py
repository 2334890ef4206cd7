"""A correct queue as a dictionary: it writes histories that the checker must accept."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from notifyq.chaos.final import Final, Row
from notifyq.chaos.history import Op, digest

LOCK = timedelta(seconds=10)
MAX_ATTEMPTS = 3
_START = datetime(2026, 1, 1, tzinfo=UTC)
_CLIENTS = 3


@dataclass
class Message:
    id: int
    key: str
    digest: str
    token: int = 0
    attempts: int = 0
    expires_at: datetime | None = None
    process: str = ""
    """The client that claimed it last."""


class Simulation:
    """Publishers, workers and a reaper over one queue; each action takes a number to choose by."""

    ACTIONS = (
        "publish", "publish_unanswered", "claim", "claim", "claim_unanswered", "execute", "extend",
        "finish", "finish", "finish_unanswered", "release", "retry", "wait", "reap",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.locks: list[Message] = []
        """Copies of claimed messages; a client keeps one even after its lock expired."""
        self._live: dict[int, Message] = {}
        self._archive: list[Row] = []
        self._seconds = 0.0
        self._calls = itertools.count(1)
        self._ids = itertools.count(1)
        self._keys = itertools.count(1)
        self._note("watch")

    @property
    def final(self) -> Final:
        """What is there now."""
        live = [
            Row(
                id=m.id, queue="q", lock_token=m.token, attempts=m.attempts, key=m.key,
                digest=m.digest, state="locked" if m.expires_at else "waiting",
            )
            for m in self._live.values()
        ]  # fmt: skip
        return Final(live=live, archive=list(self._archive), max_attempts={"q": MAX_ATTEMPTS})

    def publish(self, choice: int, *, answer: str = "ok") -> None:
        key = f"key-{next(self._keys)}"
        call = self._invoke(
            f"publisher-{choice % 2}", "publish", key=key, queue="q", digest=digest(key)
        )
        if answer == "ok" or choice % 2:
            message = Message(next(self._ids), key, digest(key))
            self._live[message.id] = message
            self._end(call, answer, **({"id": message.id} if answer == "ok" else {}))
        else:
            self._end(call, answer)

    def publish_unanswered(self, choice: int) -> None:
        self.publish(choice, answer="unknown" if choice % 3 else "")

    def claim(self, choice: int, *, answer: str = "ok") -> None:
        process = f"worker-{choice % _CLIENTS}"
        call = self._invoke(process, "claim")
        claimed = [m for m in self._live.values() if m.expires_at is None][: 1 + choice % 2]
        claims = []
        for message in claimed:
            message.token += 1
            message.attempts += 1
            message.expires_at = self._clock + LOCK
            claims.append(
                {
                    "id": message.id, "lock_token": message.token, "attempts": message.attempts,
                    "locked_at": self._clock.isoformat(),
                    "lock_expires_at": _text(message.expires_at),
                }
            )  # fmt: skip
            message.process = process
            if answer == "ok":
                self.locks.append(replace(message))
        self._end(call, answer, **({"messages": claims} if answer == "ok" else {}))

    def claim_unanswered(self, choice: int) -> None:
        self.claim(choice, answer="unknown")

    def execute(self, choice: int) -> None:
        executed = {(op.fields["id"], op.fields["lock_token"]) for op in self._all("execute")}
        ready = [lock for lock in self.locks if (lock.id, lock.token) not in executed]
        if not ready:
            return
        lock = ready[choice % len(ready)]
        call = self._invoke(
            lock.process, "execute", id=lock.id, lock_token=lock.token, attempts=lock.attempts,
            key=lock.key, digest=lock.digest, lock_expires_at=_text(lock.expires_at),
        )  # fmt: skip
        self._end(call, ("ok", "fail", "")[choice % 3])

    def extend(self, choice: int) -> None:
        if lock := self._some_lock(choice):
            call = self._settling("extend", lock)
            if message := self._held(lock):
                message.expires_at = self._clock + timedelta(seconds=1 + choice % 20)
                self._end(call, "ok", held=True, lock_expires_at=_text(message.expires_at))
            else:
                self._end(call, "ok", held=False)

    def finish(self, choice: int, *, answer: str = "ok") -> None:
        if lock := self._some_lock(choice):
            status = ("success", "failed", "rejected")[choice % 3]
            call = self._settling("finish", lock, status=status)
            message = self._held(lock)
            if message:
                self._finish(message, status)
            self._end(call, answer, **({"held": bool(message)} if answer == "ok" else {}))

    def finish_unanswered(self, choice: int) -> None:
        self.finish(choice, answer="unknown")

    def release(self, choice: int) -> None:
        if lock := self._some_lock(choice):
            call = self._settling("release", lock)
            message = self._held(lock)
            if message:
                self._requeue(message)
                message.attempts -= 1
            self._end(call, "ok", held=bool(message))

    def retry(self, choice: int) -> None:
        if lock := self._some_lock(choice):
            call = self._settling("retry", lock)
            message = self._held(lock)
            if message:
                self._fall_back(message, "failed")
            self._end(call, "ok", held=bool(message))

    def wait(self, choice: int) -> None:
        self._seconds += choice % 15

    def reap(self, _choice: int = 0) -> None:
        for message in list(self._live.values()):
            if message.expires_at and message.expires_at <= self._clock:
                self._fall_back(message, "lock_expired")

    def drain(self) -> None:
        """Finish all messages, as the end of a run; then the watcher reports dead ones."""
        drain = self._invoke("rig", "drain")
        while self._live:
            self._seconds += LOCK.total_seconds()
            self.reap()
            self.claim(0)
            self.execute(0)
            if any(m.expires_at for m in self._live.values()):
                self.finish(3 * (len(self.locks) - 1))
        self._end(drain, "ok")
        for row in self._archive:
            if row.status != "success":
                self._note("dead", id=row.id)

    @property
    def _clock(self) -> datetime:
        return _START + timedelta(seconds=self._seconds)

    def _all(self, op: str) -> list[Op]:
        return [line for line in self.ops if line.op == op and line.type == "invoke"]

    def _some_lock(self, choice: int) -> Message | None:
        # The latest first: mostly it still holds.
        return self.locks[-1 - (choice // 3) % len(self.locks)] if self.locks else None

    def _held(self, lock: Message) -> Message | None:
        message = self._live.get(lock.id)
        return message if message and message.expires_at and message.token == lock.token else None

    def _finish(self, message: Message, status: str) -> None:
        del self._live[message.id]
        self._archive.append(
            Row(
                id=message.id, queue="q", lock_token=message.token, attempts=message.attempts,
                key=message.key, digest=message.digest, status=status,
            )
        )  # fmt: skip

    def _requeue(self, message: Message) -> None:
        message.token += 1
        message.expires_at = None

    def _fall_back(self, message: Message, status: str) -> None:
        if message.attempts >= MAX_ATTEMPTS:
            self._finish(message, status)
        else:
            self._requeue(message)

    def _settling(self, op: str, lock: Message, **fields: Any) -> Op:
        return self._invoke(lock.process, op, id=lock.id, lock_token=lock.token, **fields)

    def _invoke(self, process: str, op: str, **fields: Any) -> Op:
        return self._write(process, op, "invoke", next(self._calls), fields)

    def _end(self, call: Op, type_: str, **fields: Any) -> None:
        """End a call; an empty type: its process was killed first."""
        if type_:
            self._write(call.process, call.op, type_, call.call, fields)

    def _note(self, op: str, **fields: Any) -> None:
        self._write("rig", op, "ok", None, fields)

    def _write(
        self, process: str, op: str, type_: str, call: int | None, fields: dict[str, Any]
    ) -> Op:
        self._seconds += 0.001
        line = Op(self._seconds, process, op, type_, call, fields)
        self.ops.append(line)
        return line


def _text(instant: datetime | None) -> str:
    assert instant is not None
    return instant.isoformat()
