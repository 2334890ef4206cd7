"""The judge: from a history and what the database holds at the end to a list of broken promises.

Pure, without a database. It accuses on evidence alone: where the outcome of a call is unknown, or
real workers claimed and settled without a word, it takes whatever happened as allowed.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from notifyq.chaos.evidence import Evidence, may_have_held
from notifyq.chaos.history import calls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.chaos.evidence import Grant
    from notifyq.chaos.final import Final
    from notifyq.chaos.history import Op


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, or `unusable`: the history cannot prove anything."""

    invariant: str
    """I1 to I9, lost, unexpected, false_acknowledgement or unusable."""
    message: str


@dataclass(slots=True)
class Verdict:
    """How a history was judged. Counts are of messages, unless said otherwise."""

    attempts: int = 0
    """Calls that published."""
    acknowledged: int = 0
    recovered: int = 0
    """Nobody knew whether they were published, and they were."""
    lost: int = 0
    unexpected: int = 0
    """Found or executed, and never published."""
    doubled_execution: int = 0
    """Executions beyond the first of each message: allowed, as delivery is at least once."""
    doubled_archive: int = 0
    """Archived rows beyond the first of each id."""
    false_acknowledgement: int = 0
    """Calls that finished a message and were told so, in vain."""
    violations: list[Violation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept, and could have been seen to be broken."""
        return not self.violations


def check(ops: Iterable[Op], final: Final) -> Verdict:
    """Judge a history; raises HistoryError where a call ends without a start."""
    judge = _Judge(Evidence(calls(ops)), final)
    judge.publications()
    judge.archive()
    judge.locks()
    judge.fences()
    judge.attempts()
    judge.payloads()
    judge.watchers()
    judge.deadlines()
    judge.usability()
    return judge.verdict


class _Judge:
    def __init__(self, evidence: Evidence, final: Final) -> None:
        self.verdict = Verdict()
        self._evidence = evidence
        self._final = final
        self._rows = [*final.live, *final.archive]

    def publications(self) -> None:
        """Lost, unexpected and recovered messages, and I1."""
        self.verdict.attempts = len(self._evidence.by_op["publish"])
        self.verdict.acknowledged = len(self._evidence.acknowledged)
        found = {row.id for row in self._rows}
        for id_, call in self._evidence.acknowledged.items():
            if id_ not in found:
                self.verdict.lost += 1
                self._accuse("lost", f"message {id_}, acknowledged to {call.process}, is nowhere")
        self._strangers()
        executed = {call.fields["key"] for call in self._evidence.by_op["execute"]}
        for key in executed - self._evidence.published.keys():
            self._unexpected(f"a message of key {key} was executed, and nobody published it")
        for id_ in sorted({r.id for r in self._final.live} & {r.id for r in self._final.archive}):
            self._accuse("I1", f"message {id_} is both live and archived")

    def _strangers(self) -> None:
        """Tell what was published without an answer from what was not published at all."""
        present: defaultdict[str, set[int]] = defaultdict(set)
        for row in self._rows:
            if row.id not in self._evidence.acknowledged:
                present[row.key or ""].add(row.id)
        for key, ids in present.items():
            tries = self._evidence.published.get(key, ())
            # Each try without an answer may have made one message, and no more.
            unanswered = sum(call.outcome == "unknown" for call in tries)
            self.verdict.recovered += min(unanswered, len(ids))
            for id_ in sorted(ids)[unanswered:]:
                self._unexpected(f"message {id_} is there, and nobody published it (key {key})")

    def archive(self) -> None:
        """I2, I3, and finishes that were acknowledged in vain."""
        for id_, number in Counter(row.id for row in self._final.archive).items():
            if number > 1:
                self.verdict.doubled_archive += number - 1
                self._accuse("I2", f"message {id_} is archived {number} times")
        claims = self._evidence.by_op["claim"]
        is_complete = bool(claims) and all(call.outcome != "unknown" for call in claims)
        for row in self._final.archive:
            tokens = {grant.token for grant in self._evidence.grants.get(row.id, ())}
            if any(token > row.lock_token for token in tokens):
                self._accuse(
                    "I3",
                    f"message {row.id} is archived under token {row.lock_token}, "
                    f"and token {max(tokens)} was granted",
                )
            elif is_complete and row.lock_token not in tokens:
                self._accuse(
                    "I3",
                    f"message {row.id} is archived under token {row.lock_token}, "
                    "which was granted to nobody",
                )
        endings = {(row.id, row.lock_token, row.status) for row in self._final.archive}
        for call in self._evidence.held("finish"):
            fields = call.fields
            ending = (fields["id"], fields["lock_token"], fields["status"])
            if ending in endings:
                endings.remove(ending)  # who is told the same after that is told a falsehood
            else:
                self.verdict.false_acknowledgement += 1
                self._accuse(
                    "false_acknowledgement",
                    f"{call.process} was told that message {fields['id']} is finished under token "
                    f"{fields['lock_token']} as {fields['status']}, and no row is due to that",
                )

    def locks(self) -> None:
        """I4 and I5: what was granted."""
        for grants in self._evidence.grants.values():
            for first, second in itertools.combinations(grants, 2):
                self._judge_pair(first, second)
        for (id_, token), number in self._evidence.executions.items():
            if number > 1:
                self._accuse("I5", f"message {id_} was executed {number} times under token {token}")

    def fences(self) -> None:
        """I3 and I5: what was accepted from those who did not hold the lock any more."""
        for (id_, token), number in self._evidence.ended.items():
            if number > 1:
                self._accuse("I3", f"message {id_} was given up {number} times under token {token}")
        for call in self._evidence.held("extend", "finish", "release", "retry"):
            for grant in self._evidence.grants.get(call.fields["id"], ()):
                if grant.token > call.fields["lock_token"] and grant.seen < call.began:
                    self._accuse(
                        "I5" if call.op == "extend" else "I3",
                        f"{call.op} under token {call.fields['lock_token']} by {call.process} "
                        f"was accepted after {grant} was granted",
                    )

    def attempts(self) -> None:
        """I6, and how many executions were not the first."""
        executed = {id_ for id_, _ in self._evidence.executions}
        self.verdict.doubled_execution = self._evidence.executions.total() - len(executed)
        used = Counter(
            grant.id
            for grants in self._evidence.grants.values()
            for grant in grants
            if grant.is_claim
        )
        # A release gives the attempt back.
        used.subtract(
            call.fields["id"] for call in self._evidence.by_op["release"] if may_have_held(call)
        )
        for row in self._rows:
            most = self._final.max_attempts.get(row.queue)
            counted = max(
                [row.attempts, *(grant.attempts for grant in self._evidence.grants.get(row.id, ()))]
            )
            if most is not None and max(counted, used[row.id]) > most:
                self._accuse(
                    "I6",
                    f"message {row.id} was claimed {used[row.id]} times, counted {counted}, "
                    f"and queue {row.queue} allows {most}",
                )

    def payloads(self) -> None:
        """I7."""
        for row in self._rows:
            sent = self._evidence.digests(row.id, row.key)
            if sent and row.digest is not None and row.digest not in sent:
                self._accuse("I7", f"the payload of message {row.id} is not the one published")
        for call in self._evidence.by_op["execute"]:
            id_ = call.fields["id"]
            sent = self._evidence.digests(id_, call.fields["key"])
            if sent and call.fields["digest"] not in sent:
                self._accuse("I7", f"{call.process} was given another payload of message {id_}")

    def watchers(self) -> None:
        """I8: whatever died after the watcher began was reported."""
        reported = {call.fields["id"] for call in self._evidence.by_op["dead"]}
        watches = self._evidence.by_op["watch"]
        if not reported and not watches:
            return
        since = min((call.began for call in watches), default=float("-inf"))
        dead = {row.id for row in self._final.archive if row.status != "success"}
        for id_ in sorted(dead - reported):
            call = self._evidence.acknowledged.get(id_)
            if call is None or call.began >= since:
                self._accuse("I8", f"message {id_} died, and the watcher never reported it")
        for id_ in sorted(reported - dead):
            self._accuse("I8", f"message {id_} was reported dead, and is not")

    def deadlines(self) -> None:
        """I9: with polling off, what was acknowledged before the deadline is claimed by then."""
        for deadline in self._evidence.by_op["deadline"]:
            for id_, call in self._evidence.acknowledged.items():
                is_early = call.ended is not None and call.ended < deadline.began
                if is_early and all(
                    g.seen > deadline.began for g in self._evidence.grants.get(id_, ())
                ):
                    self._accuse("I9", f"message {id_} was not claimed until the deadline")
        if any(call.outcome == "fail" for call in self._evidence.by_op["drain"]):
            for row in self._final.live:
                if row.state == "waiting":
                    self._accuse("I9", f"message {row.id} waits, and nobody claims it")

    def usability(self) -> None:
        """Whether a broken promise could have been seen."""
        if not any(self._evidence.by_op.values()):
            self._accuse("unusable", "the history is empty")
        elif not self._evidence.acknowledged:
            self._accuse("unusable", "no message was acknowledged")
        elif not self._evidence.grants:
            self._accuse("unusable", "nobody claimed or executed a message")
        if self._final.live:
            left = Counter(row.state for row in self._final.live)
            states = ", ".join(f"{number} {state}" for state, number in sorted(left.items()))
            self._accuse("unusable", f"the drain is not finished: {states} left")
        for call in self._evidence.by_op["fault"] + self._evidence.by_op["drain"]:
            if call.outcome != "ok":
                name = call.fields.get("name", "")
                self._accuse("unusable", f"{call.op} {name}".rstrip() + " did not come to its end")

    def _judge_pair(self, first: Grant, second: Grant) -> None:
        if first.token == second.token:
            self._accuse("I4", f"{first} was granted to {second.process} as well")
            return
        if first.is_claim and second.is_claim and second.seen < first.began:
            self._accuse("I4", f"{first} was granted after {second}")
        if self._evidence.stand_together(first, second):
            self._accuse("I5", f"{first} was still locked when {second} was granted")

    def _unexpected(self, message: str) -> None:
        self.verdict.unexpected += 1
        self._accuse("unexpected", message)

    def _accuse(self, invariant: str, message: str) -> None:
        self.verdict.violations.append(Violation(invariant, message))
