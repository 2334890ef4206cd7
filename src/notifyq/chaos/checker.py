"""The checker: compares a history with the final state of the database and lists violations.

It is pure and needs no database. Where the outcome of a call is unknown, or a worker did not record
its claims and settlements, it allows every possible outcome.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from notifyq.chaos.final import Final
from notifyq.chaos.history import Call, Op, calls, read

_MOST = 20
"""Findings that are listed one by one."""
_SETTLES = ("finish", "release", "retry")
"""Calls that end a lock before it expires."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, or `unusable`: the history proves nothing."""

    invariant: str
    """I1 to I11, lost, unexpected, false_acknowledgement or unusable."""
    message: str


@dataclass(slots=True)
class CheckResult:
    """What the checker found; counts are of messages unless they name something else."""

    attempts: int = 0
    """Calls that published."""
    acknowledged: int = 0
    recovered: int = 0
    """Published without an acknowledgement, and found."""
    lost: int = 0
    unexpected: int = 0
    """Found or executed, but never published."""
    doubled_execution: int = 0
    """Executions beyond the first of each message; at-least-once delivery allows them."""
    doubled_archive: int = 0
    """Archived rows beyond the first of each id."""
    false_acknowledgement: int = 0
    """Acknowledged finishes without an archived row."""
    violations: list[Violation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the history is usable and no invariant is violated."""
        return not self.violations

    def findings(self) -> list[str]:
        """List the violations; of very many only the first, and how many more there are."""
        texts = [f"{it.invariant}: {it.message}" for it in self.violations]
        more = len(texts) - _MOST
        return [*texts[:_MOST], f"and {more} more"] if more > 0 else texts


def judge(folder: Path) -> CheckResult:
    """Check the history in `folder`; raises HistoryError where it is not complete."""
    final = Final.read(folder)
    return check(read(folder), final)


def check(ops: Iterable[Op], final: Final) -> CheckResult:
    """Check a history; raises HistoryError where a call ends without a start."""
    checker = _Checker(calls(ops), final)
    checker.publications()
    checker.archive()
    checker.locks()
    checker.fences()
    checker.attempts()
    checker.steps()
    checker.signals()
    checker.missed()
    checker.payloads()
    checker.watchers()
    checker.deadlines()
    checker.usability()
    return checker.result


@dataclass(frozen=True, slots=True)
class _Grant:
    """A lock as a client saw it: in the answer to a claim, otherwise at the start of a handler."""

    lock: tuple[int, int]
    """Id and token."""
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
    def token(self) -> int:
        return self.lock[1]

    def __str__(self) -> str:
        return f"message {self.lock[0]} under token {self.token} ({self.process})"


class _Evidence:
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
        self.executions = Counter(map(_lock, self.by_op["execute"]))
        """How many executions each lock was used for."""

    def held(self, *ops: str) -> list[Call]:
        """Calls of these operations whose answer was that they held the lock."""
        return [
            call
            for op in ops
            for call in self.by_op[op]
            if call.outcome == "ok" and call.fields["held"]
        ]

    def digests(self, message_id: int, key: str | None) -> set[str]:
        """Return the digests published under this id, or if the id is unknown, under this key."""
        call = self.acknowledged.get(message_id)
        tries = self.published.get(key if call is None else call.fields["key"], ())
        return {call.fields["digest"] for call in tries}

    @cached_property
    def grants(self) -> dict[int, list[_Grant]]:
        """All known locks by message, ordered by token."""
        found = [_grant(it, call) for call in self.by_op["claim"] for it in call.messages]
        known = {grant.lock for grant in found}
        for call in self.by_op["execute"]:
            if _lock(call) not in known:
                known.add(_lock(call))
                found.append(_grant(call.fields, call))
        grants: defaultdict[int, list[_Grant]] = defaultdict(list)
        for grant in sorted(found, key=lambda grant: grant.token):
            grants[grant.lock[0]].append(grant)
        return dict(grants)

    def overlap(self, first: _Grant, second: _Grant) -> bool:
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

    @cached_property
    def takers(self) -> dict[tuple[str, str], set[tuple[int, str]]]:
        """The waits that received each signal."""
        found: defaultdict[tuple[str, str], set[tuple[int, str]]] = defaultdict(set)
        for call in self.by_op["release"]:
            if call.fields.get("signals") and "received" in call.fields:
                name, payload = call.fields["received"]
                found[name, payload].add(_wait(call))
        return dict(found)

    @cached_property
    def _expiries(self) -> dict[tuple[int, int], datetime]:
        """When each lock expires according to its last answer: an extension may shorten it."""
        known = [
            (grant.lock, grant.expires_at) for found in self.grants.values() for grant in found
        ]
        known += [(_lock(c), _instant(c.fields, "lock_expires_at")) for c in self.held("extend")]
        return {lock: instant for lock, instant in known if instant is not None}

    @cached_property
    def _settled_at(self) -> dict[tuple[int, int], float]:
        """The earliest time at which each lock may have ended before it expired."""
        settled: dict[tuple[int, int], float] = {}
        ended = [call for op in _SETTLES for call in self.by_op[op]]
        # An extension without an answer may have shortened the lock.
        for call in ended + [it for it in self.by_op["extend"] if it.outcome == "unknown"]:
            began = call.began if _may_have_held(call) else _NEVER
            settled[_lock(call)] = min(began, settled.get(_lock(call), _NEVER))
        claimed = {
            grant.lock for found in self.grants.values() for grant in found if grant.is_claim
        }
        for call in self.by_op["execute"]:
            # A worker without a recorded claim records no settlement: it may follow the handler.
            if call.ended is not None and _lock(call) not in claimed:
                settled.setdefault(_lock(call), call.ended)
        return settled


class _Checker(_Evidence):
    def __init__(self, history: Iterable[Call], final: Final) -> None:
        super().__init__(history)
        self.result = CheckResult()
        self._final = final
        self._rows = [*final.live, *final.archive]

    def publications(self) -> None:
        """Lost, unexpected and recovered messages, and I1."""
        self.result.attempts = len(self.by_op["publish"])
        self.result.acknowledged = len(self.acknowledged)
        found = {row.id for row in self._rows}
        for id_, call in self.acknowledged.items():
            if id_ not in found:
                self.result.lost += 1
                self._add("lost", f"message {id_}, acknowledged to {call.process}, is missing")
        self._unacknowledged()
        executed = {call.fields["key"] for call in self.by_op["execute"]}
        for key in executed - self.published.keys():
            self._unexpected(f"a message of key {key} was executed but never published")
        for id_ in sorted({r.id for r in self._final.live} & {r.id for r in self._final.archive}):
            self._add("I1", f"message {id_} is both live and archived")

    def _unacknowledged(self) -> None:
        """Tell messages published without an answer from messages that were not published."""
        present: defaultdict[str, set[int]] = defaultdict(set)
        for row in self._rows:
            if row.id not in self.acknowledged:
                present[row.key or ""].add(row.id)
        for key, ids in present.items():
            # Each try without an answer may have made at most one message.
            unanswered = sum(call.outcome == "unknown" for call in self.published.get(key, ()))
            self.result.recovered += min(unanswered, len(ids))
            for id_ in sorted(ids)[unanswered:]:
                self._unexpected(f"message {id_} (key {key}) exists but was never published")

    def archive(self) -> None:
        """I2, I3, and false acknowledgements."""
        for id_, number in Counter(row.id for row in self._final.archive).items():
            if number > 1:
                self.result.doubled_archive += number - 1
                self._add("I2", f"message {id_} is archived {number} times")
        claims = self.by_op["claim"]
        is_complete = bool(claims) and all(call.outcome != "unknown" for call in claims)
        for row in self._final.archive:
            archived = f"message {row.id} is archived under token {row.lock_token}"
            tokens = {grant.token for grant in self.grants.get(row.id, ())}
            if any(token > row.lock_token for token in tokens):
                self._add("I3", f"{archived}, but token {max(tokens)} was granted later")
            elif is_complete and row.lock_token not in tokens:
                self._add("I3", f"{archived}, which was never granted")
        endings = {(row.id, row.lock_token, row.status) for row in self._final.archive}
        for call in self.held("finish"):
            ending = (*_lock(call), call.fields["status"])
            if ending in endings:
                endings.remove(ending)  # a second acknowledgement of the same finish is false
            else:
                self.result.false_acknowledgement += 1
                self._add(
                    "false_acknowledgement",
                    f"{call.process} finished message {ending[0]} under token {ending[1]} as "
                    f"{ending[2]}, but no archived row matches",
                )

    def locks(self) -> None:
        """I4 and I5: grants."""
        for grants in self.grants.values():
            for first, second in itertools.combinations(grants, 2):
                if first.token == second.token:
                    self._add("I4", f"{first} was granted to {second.process} too")
                    continue
                if first.is_claim and second.is_claim and second.seen < first.began:
                    self._add("I4", f"{first} was granted after {second}")
                if self.overlap(first, second):
                    self._add("I5", f"{first} was still locked when {second} was granted")
        for (id_, token), number in self.executions.items():
            if number > 1:
                self._add("I5", f"message {id_} was executed {number} times under token {token}")

    def fences(self) -> None:
        """I3 and I5: calls that were accepted under a lost lock."""
        for (id_, token), number in Counter(map(_lock, self.held(*_SETTLES))).items():
            if number > 1:
                self._add("I3", f"message {id_} was settled {number} times under token {token}")
        for call in self.held("extend", *_SETTLES):
            id_, token = _lock(call)
            for grant in self.grants.get(id_, ()):
                if grant.token > token and grant.seen < call.began:
                    self._add(
                        "I5" if call.op == "extend" else "I3",
                        f"{call.op} under token {token} by {call.process} was accepted after "
                        f"{grant} was granted",
                    )

    def attempts(self) -> None:
        """I6, and how many executions were not the first."""
        executed = {id_ for id_, _ in self.executions}
        self.result.doubled_execution = self.executions.total() - len(executed)
        used = Counter(
            {id_: sum(it.is_claim for it in grants) for id_, grants in self.grants.items()}
        )
        # A release does not count as an attempt.
        used.subtract(_lock(call)[0] for call in self.by_op["release"] if _may_have_held(call))
        for row in self._rows:
            most = self._final.max_attempts.get(row.queue)
            counted = max([row.attempts, *(it.attempts for it in self.grants.get(row.id, ()))])
            if most is not None and max(counted, used[row.id]) > most:
                self._add(
                    "I6",
                    f"message {row.id} was claimed {used[row.id]} times and counts {counted} "
                    f"attempts, but queue {row.queue} allows {most}",
                )
        for call in self.held("release"):
            id_, token = _lock(call)
            attempts = {grant.token: grant.attempts for grant in self.grants.get(id_, ())}
            # A release and a claim: nothing else has changed the token in between.
            if attempts.get(token + 2, 0) > attempts.get(token, _NEVER):
                self._add("I6", f"message {id_} used an attempt by its release under token {token}")

    def steps(self) -> None:
        """I10: a recorded step is not executed again, and its child is published once."""
        recorded: dict[tuple[int, str], float] = {}
        for call in self.by_op["step"]:
            id_, step = key = call.fields["id"], call.fields["step"]
            if call.began > recorded.get(key, _NEVER):
                self._add("I10", f"step {step!r} of message {id_} was recorded and executed again")
            if call.outcome == "ok" and call.ended is not None:
                recorded[key] = min(call.ended, recorded.get(key, _NEVER))
        parents = {
            call.fields["key"]: call.fields["parent"]
            for call in self.by_op["publish"]
            if "parent" in call.fields
        }
        for child, number in Counter(row.key for row in self._rows if row.key in parents).items():
            if number > 1:
                self._add("I10", f"message {parents[child]} has published {number} times {child}")

    def signals(self) -> None:
        """I11: a wait receives one signal, and a signal to one message reaches one wait."""
        received: defaultdict[tuple[int, str], set[tuple[str, str]]] = defaultdict(set)
        for signal, takers in self.takers.items():
            for wait in takers:
                received[wait].add(signal)
        for (id_, step), found in received.items():
            if len(found) > 1:
                self._add("I11", f"wait {step!r} of message {id_} received {len(found)} signals")
        for sent in self.by_op["signal"]:
            to, number = sent.fields["to"], len(self.takers.get(_signal(sent), ()))
            if to is not None and number > 1:
                name = sent.fields["name"]
                self._add("I11", f"{number} waits received signal {name!r} to message {to}")

    def missed(self) -> None:
        """I11: a wait that is called after a signal was sent receives it, or another one."""
        waits: defaultdict[str, list[Call]] = defaultdict(list)
        for call in self.by_op["release"]:
            if call.outcome == "ok" or call.fields.get("timed_out"):
                for name in call.fields.get("signals", ()):
                    waits[name].append(call)
        for sent in self.by_op["signal"]:
            name, to = sent.fields["name"], sent.fields["to"]
            takers = self.takers.get(_signal(sent), set())
            for call in waits[name] if sent.outcome == "ok" else ():
                is_there = to is None or (call.fields["id"] == to and takers <= {_wait(call)})
                if is_there and (_NEVER if sent.ended is None else sent.ended) < call.began:
                    id_, step = _wait(call)
                    self._add("I11", f"wait {step!r} of message {id_} missed signal {name!r}")

    def payloads(self) -> None:
        """I7."""
        for row in self._rows:
            sent = self.digests(row.id, row.key)
            if sent and row.digest is not None and row.digest not in sent:
                self._add("I7", f"the payload of message {row.id} is not the one published")
        for call in self.by_op["execute"]:
            id_ = call.fields["id"]
            sent = self.digests(id_, call.fields["key"])
            if sent and call.fields["digest"] not in sent:
                self._add("I7", f"{call.process} got another payload of message {id_}")

    def watchers(self) -> None:
        """I8: each dead message published after the watcher began was reported."""
        reported = {call.fields["id"] for call in self.by_op["dead"]}
        watches = self.by_op["watch"]
        if not reported and not watches:
            return
        since = min((call.began for call in watches), default=-_NEVER)
        dead = {
            row.id
            for row in self._final.archive
            if row.status != "success" and not row.is_cancelled
        }
        for id_ in sorted(dead - reported):
            call = self.acknowledged.get(id_)
            if call is None or call.began >= since:
                self._add("I8", f"message {id_} is dead, but the watcher did not report it")
        for id_ in sorted(reported - dead):
            self._add("I8", f"message {id_} was reported dead, but is not")

    def deadlines(self) -> None:
        """I9: without polling, a message acknowledged before a deadline is claimed by then."""
        for deadline in self.by_op["deadline"]:
            for id_, call in self.acknowledged.items():
                is_early = call.ended is not None and call.ended < deadline.began
                if is_early and all(it.seen > deadline.began for it in self.grants.get(id_, ())):
                    self._add("I9", f"message {id_} was not claimed until the deadline")
        if any(call.outcome == "fail" for call in self.by_op["drain"]):
            for row in self._final.live:
                if row.state == "waiting":
                    self._add("I9", f"message {row.id} waits, but no worker claims it")
                if row.is_parked:
                    self._add("I9", f"message {row.id} is parked, and nothing wakes it")

    def usability(self) -> None:
        """Whether the history could have shown a violation."""
        if not any(self.by_op.values()):
            self._add("unusable", "the history is empty")
        elif not self.acknowledged:
            self._add("unusable", "no message was acknowledged")
        elif not self.grants:
            self._add("unusable", "no message was claimed or executed")
        if self._final.live:
            left = Counter(row.state for row in self._final.live)
            states = ", ".join(f"{number} {state}" for state, number in sorted(left.items()))
            self._add("unusable", f"the drain is not finished: {states} left")
        for call in self.by_op["fault"] + self.by_op["drain"]:
            if call.outcome != "ok":
                name = call.fields.get("name", "")
                self._add("unusable", f"{call.op} {name}".rstrip() + " did not complete")

    def _unexpected(self, message: str) -> None:
        self.result.unexpected += 1
        self._add("unexpected", message)

    def _add(self, invariant: str, message: str) -> None:
        self.result.violations.append(Violation(invariant, message))


def _may_have_held(call: Call) -> bool:
    """Whether a call that needs the lock may have had it."""
    return call.outcome == "unknown" or (call.outcome == "ok" and call.fields["held"])


def _lock(call: Call) -> tuple[int, int]:
    return call.fields["id"], call.fields["lock_token"]


def _wait(call: Call) -> tuple[int, str]:
    return call.fields["id"], call.fields["step"]


def _signal(call: Call) -> tuple[str, str]:
    return call.fields["name"], call.fields["payload"]


def _grant(message: dict[str, Any], call: Call) -> _Grant:
    is_claim = call.op == "claim"
    return _Grant(
        lock=(message["id"], message["lock_token"]),
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
