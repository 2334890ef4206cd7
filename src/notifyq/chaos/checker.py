"""The checker: compares a history with the final state of the database and lists violations.

It is pure and needs no database. Where the outcome of a call is unknown, or a worker did not record
its claims and settlements, it allows every possible outcome.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from notifyq.chaos.evidence import Evidence, may_have_held
from notifyq.chaos.final import Final
from notifyq.chaos.history import calls, read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from notifyq.chaos.evidence import Grant
    from notifyq.chaos.history import Op

_MOST = 20
"""Findings that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, or `unusable`: the history proves nothing."""

    invariant: str
    """I1 to I9, lost, unexpected, false_acknowledgement or unusable."""
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
    checker = _Checker(Evidence(calls(ops)), final)
    checker.publications()
    checker.archive()
    checker.locks()
    checker.fences()
    checker.attempts()
    checker.payloads()
    checker.watchers()
    checker.deadlines()
    checker.usability()
    return checker.result


class _Checker:
    def __init__(self, evidence: Evidence, final: Final) -> None:
        self.result = CheckResult()
        self._evidence = evidence
        self._final = final
        self._rows = [*final.live, *final.archive]

    def publications(self) -> None:
        """Lost, unexpected and recovered messages, and I1."""
        self.result.attempts = len(self._evidence.by_op["publish"])
        self.result.acknowledged = len(self._evidence.acknowledged)
        found = {row.id for row in self._rows}
        for id_, call in self._evidence.acknowledged.items():
            if id_ not in found:
                self.result.lost += 1
                self._add("lost", f"message {id_}, acknowledged to {call.process}, is missing")
        self._unacknowledged()
        executed = {call.fields["key"] for call in self._evidence.by_op["execute"]}
        for key in executed - self._evidence.published.keys():
            self._unexpected(f"a message of key {key} was executed but never published")
        for id_ in sorted({r.id for r in self._final.live} & {r.id for r in self._final.archive}):
            self._add("I1", f"message {id_} is both live and archived")

    def _unacknowledged(self) -> None:
        """Tell messages published without an answer from messages that were not published."""
        present: defaultdict[str, set[int]] = defaultdict(set)
        for row in self._rows:
            if row.id not in self._evidence.acknowledged:
                present[row.key or ""].add(row.id)
        for key, ids in present.items():
            tries = self._evidence.published.get(key, ())
            # Each try without an answer may have made at most one message.
            unanswered = sum(call.outcome == "unknown" for call in tries)
            self.result.recovered += min(unanswered, len(ids))
            for id_ in sorted(ids)[unanswered:]:
                self._unexpected(f"message {id_} (key {key}) exists but was never published")

    def archive(self) -> None:
        """I2, I3, and false acknowledgements."""
        for id_, number in Counter(row.id for row in self._final.archive).items():
            if number > 1:
                self.result.doubled_archive += number - 1
                self._add("I2", f"message {id_} is archived {number} times")
        claims = self._evidence.by_op["claim"]
        is_complete = bool(claims) and all(call.outcome != "unknown" for call in claims)
        for row in self._final.archive:
            archived = f"message {row.id} is archived under token {row.lock_token}"
            tokens = {grant.token for grant in self._evidence.grants.get(row.id, ())}
            if any(token > row.lock_token for token in tokens):
                self._add("I3", f"{archived}, but token {max(tokens)} was granted later")
            elif is_complete and row.lock_token not in tokens:
                self._add("I3", f"{archived}, which was never granted")
        endings = {(row.id, row.lock_token, row.status) for row in self._final.archive}
        for call in self._evidence.held("finish"):
            fields = call.fields
            ending = (fields["id"], fields["lock_token"], fields["status"])
            if ending in endings:
                endings.remove(ending)  # a second acknowledgement of the same finish is false
            else:
                self.result.false_acknowledgement += 1
                self._add(
                    "false_acknowledgement",
                    f"{call.process} finished message {fields['id']} under token "
                    f"{fields['lock_token']} as {fields['status']}, but no archived row matches",
                )

    def locks(self) -> None:
        """I4 and I5: grants."""
        for grants in self._evidence.grants.values():
            for first, second in itertools.combinations(grants, 2):
                self._check_pair(first, second)
        for (id_, token), number in self._evidence.executions.items():
            if number > 1:
                self._add("I5", f"message {id_} was executed {number} times under token {token}")

    def fences(self) -> None:
        """I3 and I5: calls that were accepted under a lost lock."""
        for (id_, token), number in self._evidence.settled.items():
            if number > 1:
                self._add("I3", f"message {id_} was settled {number} times under token {token}")
        for call in self._evidence.held("extend", "finish", "release", "retry"):
            for grant in self._evidence.grants.get(call.fields["id"], ()):
                if grant.token > call.fields["lock_token"] and grant.seen < call.began:
                    self._add(
                        "I5" if call.op == "extend" else "I3",
                        f"{call.op} under token {call.fields['lock_token']} by {call.process} "
                        f"was accepted after {grant} was granted",
                    )

    def attempts(self) -> None:
        """I6, and how many executions were not the first."""
        executed = {id_ for id_, _ in self._evidence.executions}
        self.result.doubled_execution = self._evidence.executions.total() - len(executed)
        used = Counter(
            grant.id
            for grants in self._evidence.grants.values()
            for grant in grants
            if grant.is_claim
        )
        # A release does not count as an attempt.
        used.subtract(
            call.fields["id"] for call in self._evidence.by_op["release"] if may_have_held(call)
        )
        for row in self._rows:
            most = self._final.max_attempts.get(row.queue)
            counted = max(
                [row.attempts, *(grant.attempts for grant in self._evidence.grants.get(row.id, ()))]
            )
            if most is not None and max(counted, used[row.id]) > most:
                self._add(
                    "I6",
                    f"message {row.id} was claimed {used[row.id]} times and counts {counted} "
                    f"attempts, but queue {row.queue} allows {most}",
                )

    def payloads(self) -> None:
        """I7."""
        for row in self._rows:
            sent = self._evidence.digests(row.id, row.key)
            if sent and row.digest is not None and row.digest not in sent:
                self._add("I7", f"the payload of message {row.id} is not the one published")
        for call in self._evidence.by_op["execute"]:
            id_ = call.fields["id"]
            sent = self._evidence.digests(id_, call.fields["key"])
            if sent and call.fields["digest"] not in sent:
                self._add("I7", f"{call.process} got another payload of message {id_}")

    def watchers(self) -> None:
        """I8: each dead message published after the watcher began was reported."""
        reported = {call.fields["id"] for call in self._evidence.by_op["dead"]}
        watches = self._evidence.by_op["watch"]
        if not reported and not watches:
            return
        since = min((call.began for call in watches), default=float("-inf"))
        dead = {row.id for row in self._final.archive if row.status != "success"}
        for id_ in sorted(dead - reported):
            call = self._evidence.acknowledged.get(id_)
            if call is None or call.began >= since:
                self._add("I8", f"message {id_} is dead, but the watcher did not report it")
        for id_ in sorted(reported - dead):
            self._add("I8", f"message {id_} was reported dead, but is not")

    def deadlines(self) -> None:
        """I9: without polling, a message acknowledged before a deadline is claimed by then."""
        for deadline in self._evidence.by_op["deadline"]:
            for id_, call in self._evidence.acknowledged.items():
                is_early = call.ended is not None and call.ended < deadline.began
                if is_early and all(
                    g.seen > deadline.began for g in self._evidence.grants.get(id_, ())
                ):
                    self._add("I9", f"message {id_} was not claimed until the deadline")
        if any(call.outcome == "fail" for call in self._evidence.by_op["drain"]):
            for row in self._final.live:
                if row.state == "waiting":
                    self._add("I9", f"message {row.id} waits, but no worker claims it")

    def usability(self) -> None:
        """Whether the history could have shown a violation."""
        if not any(self._evidence.by_op.values()):
            self._add("unusable", "the history is empty")
        elif not self._evidence.acknowledged:
            self._add("unusable", "no message was acknowledged")
        elif not self._evidence.grants:
            self._add("unusable", "no message was claimed or executed")
        if self._final.live:
            left = Counter(row.state for row in self._final.live)
            states = ", ".join(f"{number} {state}" for state, number in sorted(left.items()))
            self._add("unusable", f"the drain is not finished: {states} left")
        for call in self._evidence.by_op["fault"] + self._evidence.by_op["drain"]:
            if call.outcome != "ok":
                name = call.fields.get("name", "")
                self._add("unusable", f"{call.op} {name}".rstrip() + " did not complete")

    def _check_pair(self, first: Grant, second: Grant) -> None:
        if first.token == second.token:
            self._add("I4", f"{first} was granted to {second.process} too")
            return
        if first.is_claim and second.is_claim and second.seen < first.began:
            self._add("I4", f"{first} was granted after {second}")
        if self._evidence.overlap(first, second):
            self._add("I5", f"{first} was still locked when {second} was granted")

    def _unexpected(self, message: str) -> None:
        self.result.unexpected += 1
        self._add("unexpected", message)

    def _add(self, invariant: str, message: str) -> None:
        self.result.violations.append(Violation(invariant, message))
