"""What the functions of schema messages mean, over dictionaries: no locks, no SQL, no clock.

Time is two facts: whether a message is due, and whether its lock has expired. The tests make the
one and the other come true by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Policy:
    """What matters of a queue; with `backs_off` the next attempt is an hour away, else at once."""

    max_attempts: int
    backs_off: bool
    paused: bool = False


@dataclass(frozen=True)
class Live:
    """A live message."""

    id: int
    queue: str
    message: dict[str, Any]
    priority: int = 0
    dedup_key: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    type: str | None = None
    state: str = "waiting"
    token: int = 0
    attempts: int = 0
    locked_by: str | None = None
    details: str | None = None
    due: bool = True
    expired: bool = False


@dataclass(frozen=True)
class Archived:
    """A finished message: as it was, and how it ended."""

    last: Live
    status: str
    details: str | None
    result: Any = None
    is_cancelled: bool = False


@dataclass
class Change:
    """What a transaction that is still open has done; nobody else sees it or touches its rows."""

    live: dict[int, Live] = field(default_factory=dict)
    archive: dict[int, Archived] = field(default_factory=dict)

    @property
    def ids(self) -> set[int]:
        """The rows that it holds."""
        return self.live.keys() | self.archive.keys()


class Model:
    """Queues, live messages, the archive, and who was published again as what."""

    def __init__(self) -> None:
        self.queues: dict[str, Policy] = {}
        self.live: dict[int, Live] = {}
        self.archive: dict[int, Archived] = {}
        self.redriven: dict[int, int] = {}
        self.published: set[int] = set()
        self.gone: set[int] = set()
        """Dropped with their queue, or deleted from the archive."""
        self.granted: dict[int, int] = {}
        """Of each message the token of the lock that was granted last."""
        self.open: Change | None = None

    @property
    def held(self) -> set[int]:
        """Messages that a transaction holds which is still open."""
        return self.open.ids if self.open else set()

    def of(self, queue: str, state: str) -> list[Live]:
        """Messages of a queue in a state that nobody holds, in the order of a claim."""
        found = [
            m
            for m in self.live.values()
            if m.queue == queue and m.state == state and m.id not in self.held
        ]
        return sorted(found, key=lambda m: (-m.priority, m.id))

    def publish(self, new: Live) -> None:
        """A message that was not there before."""
        assert new.id not in self.published
        self.published.add(new.id)
        self.live[new.id] = new

    def keyed(self, queue: str, key: str | None) -> int | None:
        """The live message of a queue that has a key."""
        same = [m.id for m in self.live.values() if m.queue == queue and m.dedup_key == key]
        return same[0] if key is not None and same else None

    def claim(
        self,
        queues: Iterable[str],
        quantity: int,
        worker: str,
        matches: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> tuple[list[Live], Change]:
        """What a claim hands out, in its order, and what it changes."""
        change = Change()
        claimed: list[Live] = []
        for name in queues:
            if self.queues[name].paused or len(claimed) == quantity:
                continue
            ready = self._staged(name, change)
            for m in [m for m in ready if matches(m.message)][: quantity - len(claimed)]:
                claimed.append(locked(m, worker))
                change.live[m.id] = claimed[-1]
        return claimed, change

    def claim_id(self, id_: int, worker: str) -> tuple[list[Live], Change]:
        """The same for one message by its id."""
        m = self.live.get(id_)
        if (
            m is None
            or m.state == "locked"
            or not m.due
            or m.id in self.held
            or self.queues[m.queue].paused
        ):
            return [], Change()
        return [locked(m, worker)], Change({id_: locked(m, worker)})

    def take(self, queue: str, quantity: int) -> tuple[list[Live], Change]:
        """What a take hands out, as it was, and what it changes."""
        change = Change()
        if self.queues[queue].paused:
            return [], change
        taken = self._staged(queue, change)[:quantity]
        for m in taken:
            change.live.pop(m.id, None)
            change.archive[m.id] = Archived(m, "success", None)
        return taken, change

    def _staged(self, queue: str, change: Change) -> list[Live]:
        due = [replace(m, state="waiting") for m in self.of(queue, "scheduled") if m.due]
        change.live.update({m.id: m for m in due})
        return sorted([*self.of(queue, "waiting"), *due], key=lambda m: (-m.priority, m.id))

    def commit(self, change: Change) -> None:
        """Make true what a transaction has done."""
        for m in change.live.values():
            if m.state == "locked":
                self.granted[m.id] = m.token
        self.live.update(change.live)
        for id_, archived in change.archive.items():
            del self.live[id_]
            self.archive[id_] = archived

    def lock(self, id_: int, token: int) -> Live | None:
        """The message if it is locked under this token."""
        m = self.live.get(id_)
        return m if m is not None and m.state == "locked" and m.token == token else None

    def finish(self, m: Live, status: str, details: str | None, result: Any = None) -> None:
        """End a lock with an outcome, or a message that nobody holds."""
        del self.live[m.id]
        self.archive[m.id] = Archived(m, status, details, result)

    def requeue(self, m: Live, details: str | None, *, later: bool, burned: bool) -> None:
        """Give a lock up: another token, and an attempt less if it does not count."""
        self.live[m.id] = replace(
            m,
            state="scheduled" if later else "waiting",
            due=not later,
            token=m.token + 1,
            attempts=m.attempts - (not burned),
            locked_by=None,
            expired=False,
            details=details,
        )

    def retry(self, m: Live, status: str, details: str | None, *, later: bool | None) -> None:
        """End an attempt; None is the backoff of the queue."""
        policy = self.queues[m.queue]
        if m.attempts >= policy.max_attempts:
            self.finish(m, status, details)
        else:
            later = policy.backs_off if later is None else later
            self.requeue(m, details, later=later, burned=True)

    def reap(self, quantity: int) -> int:
        """End locks that have expired, in the order of ids."""
        expired = sorted(m.id for m in self.live.values() if m.expired)[:quantity]
        for id_ in expired:
            m = self.live[id_]
            self.retry(m, "lock_expired", f"lock of {m.locked_by} expired", later=None)
        return len(expired)

    def stage_due(self) -> int:
        """Make available what is due."""
        change = Change()
        for queue in self.queues:
            self._staged(queue, change)
        self.commit(change)
        return len(change.live)

    def cancel(self, m: Live) -> None:
        """End a message that nobody holds; it is not dead."""
        del self.live[m.id]
        self.archive[m.id] = Archived(m, "rejected", "cancelled", is_cancelled=True)

    def dead(
        self, queue: str | None = None, status: str | None = None, *, cancelled: bool | None = False
    ) -> list[int]:
        """Dead messages that need attention; `cancelled`: cancelled ones instead, None: both."""
        return sorted(
            id_
            for id_, a in self.archive.items()
            if a.status != "success"
            and cancelled in {None, a.is_cancelled}
            and queue in {None, a.last.queue}
            and status in {None, a.status}
            and id_ not in self.redriven
        )

    def redrive(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Publish dead messages again under these ids."""
        for dead, id_ in zip(old, new, strict=True):
            m = self.archive[dead].last
            self.redriven[dead] = id_
            self.publish(Live(id_, m.queue, m.message, m.priority, headers=m.headers, type=m.type))

    def drop(self, queue: str) -> int:
        """Drop a queue and what is in it."""
        del self.queues[queue]
        ids = [m.id for m in self.live.values() if m.queue == queue]
        for id_ in ids:
            del self.live[id_]
        self.gone.update(ids)
        return len(ids)

    def delete(self, ids: Iterable[int]) -> int:
        """Delete dead messages from the archive."""
        dead = {id_ for id_ in ids if id_ in self.archive and self.archive[id_].status != "success"}
        for id_ in dead:
            del self.archive[id_]
            self.redriven.pop(id_, None)
        self.gone |= dead
        return len(dead)


def locked(m: Live, worker: str) -> Live:
    """The message as a claim leaves it."""
    return replace(
        m,
        state="locked",
        token=m.token + 1,
        attempts=m.attempts + 1,
        locked_by=worker,
        expired=False,
    )
