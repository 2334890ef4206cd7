"""Indexes a history for the checker: publications, grants, and how long each lock was held."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.chaos.history import Call

_SETTLES = ("finish", "release", "retry")
"""Calls that end a lock before it expires."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Grant:
    """A lock as a client saw it: in the answer to a claim, otherwise at the start of a handler."""

    id: int
    token: int
    attempts: int
    locked_at: datetime | None
    expires_at: datetime | None
    process: str
    began: float
    """When the claim was sent, or the execution began."""
    seen: float
    """When the answer arrived."""
    is_claim: bool

    @property
    def lock(self) -> tuple[int, int]:
        """Id and token, which identify a lock."""
        return self.id, self.token

    def __str__(self) -> str:
        return f"message {self.id} under token {self.token} ({self.process})"


class Evidence:
    """The calls of a history by operation, and what follows from them."""

    def __init__(self, history: Iterable[Call]) -> None:
        self.by_op: defaultdict[str, list[Call]] = defaultdict(list)
        for call in history:
            self.by_op[call.op].append(call)
        self.published: defaultdict[str | None, list[Call]] = defaultdict(list)
        """Calls by key: one for each try."""
        self.acknowledged: dict[int, Call] = {}
        """Calls by the id that they returned."""
        for call in self.by_op["publish"]:
            self.published[call.fields["key"]].append(call)
            if call.outcome == "ok":
                self.acknowledged.setdefault(call.fields["id"], call)

    def held(self, *ops: str) -> list[Call]:
        """Calls of these operations whose answer was that they held the lock."""
        return [call for call in self._calls(*ops) if call.outcome == "ok" and call.fields["held"]]

    @cached_property
    def executions(self) -> Counter[tuple[int, int]]:
        """How many executions each lock was used for."""
        return Counter(map(_lock, self.by_op["execute"]))

    @cached_property
    def settled(self) -> Counter[tuple[int, int]]:
        """How often a finish, release or retry of each lock was acknowledged."""
        return Counter(map(_lock, self.held(*_SETTLES)))

    def digests(self, message_id: int, key: str | None) -> set[str]:
        """Return the digests published under this id, or if the id is unknown, under this key."""
        call = self.acknowledged.get(message_id)
        tries = self.published.get(key if call is None else call.fields["key"], ())
        return {call.fields["digest"] for call in tries}

    @cached_property
    def grants(self) -> dict[int, list[Grant]]:
        """All known locks by message, ordered by token."""
        grants: defaultdict[int, list[Grant]] = defaultdict(list)
        for call in self.by_op["claim"]:
            for message in call.messages:
                grants[message["id"]].append(_grant(message, call, is_claim=True))
        known = {grant.lock for found in grants.values() for grant in found}
        for call in self.by_op["execute"]:
            grant = _grant(call.fields, call, is_claim=False)
            if grant.lock not in known:
                known.add(grant.lock)
                grants[grant.id].append(grant)
        for found in grants.values():
            found.sort(key=lambda grant: grant.token)
        return dict(grants)

    def overlap(self, first: Grant, second: Grant) -> bool:
        """Whether both locks were held at one instant of the database without an excuse."""
        begins = (first.locked_at, second.locked_at)
        ends = (self._expiries.get(first.lock), self._expiries.get(second.lock))
        known_begins = [instant for instant in begins if instant is not None]
        known_ends = [instant for instant in ends if instant is not None]
        if len(known_begins + known_ends) < 4 or max(known_begins) >= min(known_ends):
            return False
        if self._settled_at.get(first.lock, _NEVER) < second.seen:
            return False
        # While the clock of the database is stepped, the same instant may occur twice.
        return not any(
            first.began < (_NEVER if step.ended is None else step.ended)
            and step.began < second.seen
            for step in self.by_op["clock"]
        )

    def _calls(self, *ops: str) -> Iterable[Call]:
        return itertools.chain.from_iterable(self.by_op[op] for op in ops)

    @cached_property
    def _all_grants(self) -> list[Grant]:
        return list(itertools.chain.from_iterable(self.grants.values()))

    @cached_property
    def _expiries(self) -> dict[tuple[int, int], datetime]:
        """When each lock expires according to its last answer: an extension may shorten it."""
        known = [(grant.lock, grant.expires_at) for grant in self._all_grants]
        known += [(_lock(c), _instant(c.fields, "lock_expires_at")) for c in self.held("extend")]
        return {lock: instant for lock, instant in known if instant is not None}

    @cached_property
    def _settled_at(self) -> dict[tuple[int, int], float]:
        """The earliest time at which each lock may have ended before it expired."""
        settled: dict[tuple[int, int], float] = {}
        for call in self._calls(*_SETTLES):
            began = call.began if may_have_held(call) else _NEVER
            settled[_lock(call)] = min(began, settled.get(_lock(call), _NEVER))
        for call in self.by_op["extend"]:
            if call.outcome == "unknown":
                settled[_lock(call)] = min(call.began, settled.get(_lock(call), _NEVER))
        claimed = {grant.lock for grant in self._all_grants if grant.is_claim}
        for call in self.by_op["execute"]:
            # A worker without a recorded claim records no settlement: it may follow the handler.
            if call.ended is not None and _lock(call) not in claimed:
                settled.setdefault(_lock(call), call.ended)
        return settled


def may_have_held(call: Call) -> bool:
    """Whether a call that needs the lock may have had it."""
    return call.outcome == "unknown" or (call.outcome == "ok" and call.fields["held"])


def _lock(call: Call) -> tuple[int, int]:
    return call.fields["id"], call.fields["lock_token"]


def _grant(message: dict[str, Any], call: Call, *, is_claim: bool) -> Grant:
    return Grant(
        id=message["id"],
        token=message["lock_token"],
        attempts=message["attempts"],
        locked_at=_instant(message, "locked_at"),
        expires_at=_instant(message, "lock_expires_at"),
        process=call.process,
        began=call.began,
        seen=call.ended if is_claim and call.ended is not None else call.began,
        is_claim=is_claim,
    )


def _instant(fields: dict[str, Any], name: str) -> datetime | None:
    text = fields.get(name)
    return None if text is None else datetime.fromisoformat(text)
