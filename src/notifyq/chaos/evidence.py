"""What a history says, put in order: publications, grants, and how long each lock stood."""

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

_GIVES_UP = ("finish", "release", "retry")
"""What ends a lock before its time."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Grant:
    """A lock as somebody was told of it: by a claim, or else before an execution."""

    id: int
    token: int
    attempts: int
    locked_at: datetime | None
    expires_at: datetime | None
    process: str
    began: float
    """When the claim was sent, or the execution began."""
    seen: float
    """When the answer was there."""
    is_claim: bool

    @property
    def lock(self) -> tuple[int, int]:
        """Id and token: a lock is one of each."""
        return self.id, self.token

    def __str__(self) -> str:
        return f"message {self.id} under token {self.token} ({self.process})"


class Evidence:
    """The calls of a history by what they did, and what follows from them."""

    def __init__(self, history: Iterable[Call]) -> None:
        self.by_op: defaultdict[str, list[Call]] = defaultdict(list)
        for call in history:
            self.by_op[call.op].append(call)
        self.published: defaultdict[str | None, list[Call]] = defaultdict(list)
        """By key; one for each try."""
        self.acknowledged: dict[int, Call] = {}
        """By the id that was told."""
        for call in self.by_op["publish"]:
            self.published[call.fields["key"]].append(call)
            if call.outcome == "ok":
                self.acknowledged.setdefault(call.fields["id"], call)

    def held(self, *ops: str) -> list[Call]:
        """Calls of these operations that were told that they held the lock."""
        made = itertools.chain.from_iterable(self.by_op[op] for op in ops)
        return [call for call in made if call.outcome == "ok" and call.fields["held"]]

    @cached_property
    def executions(self) -> Counter[tuple[int, int]]:
        """How often each lock, an id and a token, was used to execute a message."""
        return Counter(map(_lock, self.by_op["execute"]))

    @cached_property
    def ended(self) -> Counter[tuple[int, int]]:
        """How often each lock was given up, as far as the callers were told."""
        return Counter(map(_lock, self.held(*_GIVES_UP)))

    def digests(self, message_id: int, key: str | None) -> set[str]:
        """Give what was published under this id, or else under this key."""
        call = self.acknowledged.get(message_id)
        tries = self.published.get(key if call is None else call.fields["key"], ())
        return {call.fields["digest"] for call in tries}

    @cached_property
    def grants(self) -> dict[int, list[Grant]]:
        """Every lock that somebody was told of, by message and in the order of tokens."""
        grants: defaultdict[int, list[Grant]] = defaultdict(list)
        for call in self.by_op["claim"]:
            for message in call.fields.get("messages", ()):
                grants[message["id"]].append(_grant(message, call, is_claim=True))
        told = {grant.lock for grant in itertools.chain.from_iterable(grants.values())}
        for call in self.by_op["execute"]:
            grant = _grant(call.fields, call, is_claim=False)
            if grant.lock not in told:
                told.add(grant.lock)
                grants[grant.id].append(grant)
        for found in grants.values():
            found.sort(key=lambda grant: grant.token)
        return dict(grants)

    def stand_together(self, first: Grant, second: Grant) -> bool:
        """Whether both locks stood at one instant of the database, and nothing excuses it."""
        begins = (first.locked_at, second.locked_at)
        ends = (self._expiries.get(first.lock), self._expiries.get(second.lock))
        known_begins = [instant for instant in begins if instant is not None]
        known_ends = [instant for instant in ends if instant is not None]
        if len(known_begins + known_ends) < 4 or max(known_begins) >= min(known_ends):
            return False
        if self._given_up.get(first.lock, _NEVER) < second.seen:
            return False
        return not any(
            # Where the clock of the database was stepped, one instant may come twice.
            first.began < (_NEVER if step.ended is None else step.ended)
            and step.began < second.seen
            for step in self.by_op["clock"]
        )

    @cached_property
    def _claimed(self) -> set[tuple[int, int]]:
        found = itertools.chain.from_iterable(self.grants.values())
        return {grant.lock for grant in found if grant.is_claim}

    @cached_property
    def _expiries(self) -> dict[tuple[int, int], datetime]:
        """When each lock ends by itself, as told last: an extension may shorten it."""
        grants = itertools.chain.from_iterable(self.grants.values())
        told = [(grant.lock, grant.expires_at) for grant in grants]
        told += [(_lock(c), _instant(c.fields, "lock_expires_at")) for c in self.held("extend")]
        return {lock: instant for lock, instant in told if instant is not None}

    @cached_property
    def _given_up(self) -> dict[tuple[int, int], float]:
        """From when on each lock may have been given up before its time."""
        settled: dict[tuple[int, int], float] = {}
        for call in itertools.chain.from_iterable(self.by_op[op] for op in _GIVES_UP):
            began = call.began if may_have_held(call) else _NEVER
            settled[_lock(call)] = min(began, settled.get(_lock(call), began))
        for call in self.by_op["extend"]:
            if call.outcome == "unknown":
                settled[_lock(call)] = min(call.began, settled.get(_lock(call), _NEVER))
        for call in self.by_op["execute"]:
            # A real worker claims and settles without a word: from when the handler is done.
            if call.ended is not None and _lock(call) not in self._claimed:
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
