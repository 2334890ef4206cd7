"""The machine: each rule calls the server and the model, and both must be equal afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from notifyq import QueueNotEmptyError, QueueNotFoundError
from stateful.bench import POLICIES, Bench
from stateful.model import Live
from support.database import expire, make_due, rows

WORKERS = ("ada", "bob")
_MOST_DUE = 10
"""Scheduled messages that a claim of one stages at most."""

picks = st.integers(0, 40)
queue_names = st.sampled_from(sorted(POLICIES))
quantities = st.sampled_from((3, 2, 1, 6))
priorities = st.sampled_from((0, 0, 0, 1, -1, 7, 2**31 - 1, -(2**31)))
keys = st.sampled_from((None, None, "k1", "k2"))
texts = st.sampled_from((None, "", "because", 'it\'s 100 % \N{SNOWMAN} \\ "odd"'))
payloads = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text('ab\\"\u00e4\u2603', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
shifts = st.sampled_from((0, 0, 0, 0, -1, 1))
dead_statuses = st.sampled_from(("failed", "rejected", "lock_expired"))


class Machine(Bench):
    """The rules."""

    @initialize()
    def begin(self) -> None:
        self.session.empty()
        for name in POLICIES:
            self.create_queue(name)
            self.publish_many(name, [None, 1], 0, [None, None], use_keys=False)

    # Queues

    @rule(name=queue_names)
    def create_queue(self, name: str) -> None:
        policy = POLICIES[name]
        created = self.session.run(
            self.session.ours.fetchval(
                "select messages.create_queue($1, '1 hour', $2, $3::text::interval, '1 day')",
                name,
                policy.max_attempts,
                "1 hour" if policy.backs_off else "0",
            )
        )
        assert created == (name not in self.model.queues)
        self.model.queues.setdefault(name, policy)

    @precondition(lambda self: self.model.open is None and len(self.model.published) > 15)
    @rule(name=queue_names, force=st.sampled_from((False, False, True)))
    def drop_queue(self, name: str, *, force: bool) -> None:
        is_full = any(m.queue == name for m in self.model.live.values())
        if name not in self.model.queues:
            with pytest.raises(QueueNotFoundError):
                self.call("drop_queue", name=name, force=force)
        elif is_full and not force:
            with pytest.raises(QueueNotEmptyError):
                self.call("drop_queue", name=name, force=False)
        else:
            dropped = self.call("drop_queue", name=name, force=force)
            assert dropped == self.model.drop(name)

    @rule(name=queue_names, pausing=st.sampled_from((False, False, True)))
    def pause_or_resume(self, name: str, *, pausing: bool) -> None:
        function = "pause_queue" if pausing else "resume_queue"
        if name not in self.model.queues:
            with pytest.raises(QueueNotFoundError):
                self.call(function, name=name)
            return
        policy = self.model.queues[name]
        assert self.call(function, name=name) == (policy.paused != pausing)
        self.model.queues[name] = replace(policy, paused=pausing)

    # Publishing

    @rule(
        queue=queue_names,
        content=payloads,
        priority=priorities,
        delayed=st.booleans(),
        key=keys,
        typed=st.booleans(),
    )
    def publish(
        self,
        queue: str,
        content: Any,
        priority: int,
        key: str | None,
        *,
        delayed: bool,
        typed: bool,
    ) -> None:
        payload = self.payload(content)
        headers = {"trace": self.count} if typed else {}
        kind = "order" if typed else None
        if self.keeps_others_waiting(queue, key):
            key = None
        options = {
            "queue": queue,
            "message": payload,
            "priority": priority,
            "type": kind,
            "headers": headers,
            "dedup_key": key,
        }
        if delayed:
            options["available_at"] = self.later()
        if queue not in self.model.queues:
            with pytest.raises(QueueNotFoundError):
                self.call("publish", **options)
            return
        there = self.model.keyed(queue, key)
        id_ = self.call("publish", **options)
        if there is not None:
            assert id_ == there
            return
        state = "scheduled" if delayed else "waiting"
        self.model.publish(
            Live(id_, queue, payload, priority, key, headers, kind, state, due=not delayed)
        )

    @rule(
        queue=queue_names,
        contents=st.lists(payloads, max_size=3),
        priority=priorities,
        keyed=st.lists(keys, min_size=3, max_size=3),
        use_keys=st.booleans(),
    )
    def publish_many(
        self,
        queue: str,
        contents: list[Any],
        priority: int,
        keyed: list[str | None],
        *,
        use_keys: bool,
    ) -> None:
        messages = [self.payload(content) for content in contents]
        dedup_keys = [
            None if self.keeps_others_waiting(queue, key) else key for key in keyed[: len(messages)]
        ]
        options: dict[str, Any] = {"queue": queue, "messages": messages, "priority": priority}
        if use_keys:
            options["dedup_keys"] = dedup_keys
        if queue not in self.model.queues:
            with pytest.raises(QueueNotFoundError):
                self.ids("publish_many", **options)
            return
        ids = self.ids("publish_many", **options)
        assert len(ids) == len(messages)
        for index, id_ in enumerate(ids):
            key = dedup_keys[index] if use_keys else None
            there = self.model.keyed(queue, key)
            if there is not None:
                assert id_ == there
            else:
                self.model.publish(Live(id_, queue, messages[index], priority, key))

    # Claims

    @rule(
        names=st.none() | st.lists(queue_names, min_size=1, max_size=3),
        quantity=quantities,
        below=st.sampled_from((None, None, None, 1, 3)),
        worker=st.sampled_from(WORKERS),
    )
    def claim(self, names: list[str] | None, quantity: int, below: int | None, worker: str) -> None:
        options = {"queues": names, "quantity": quantity, "worker": worker}
        if below is not None:
            options["filter"] = f"$.n < {below}"
        if set(names or ()) - self.model.queues.keys():
            with pytest.raises(QueueNotFoundError):
                self.rows("claim", **options)
            return
        order = list(dict.fromkeys(names)) if names is not None else sorted(self.model.queues)
        expected, change = self.model.claim(
            order, quantity, worker, lambda m: below is None or m["n"] < below
        )
        self.compare_claimed(self.rows("claim", **options), expected)
        self.model.commit(change)

    @rule(pick=picks, worker=st.sampled_from(WORKERS))
    def claim_id(self, pick: int, worker: str) -> None:
        id_ = self.known(pick)
        expected, change = self.model.claim_id(id_, worker)
        self.compare_claimed(self.rows("claim_id", id=id_, worker=worker), expected)
        self.model.commit(change)

    # Settling: with the right token or with another one

    @rule(pick=picks, shift=shifts)
    def extend(self, pick: int, shift: int) -> None:
        id_ = self.known(pick)
        m = self.model.lock(id_, token := self.token(id_, shift))
        assert self.call("extend", id=id_, lock_token=token) == (m is not None)
        if m is not None:
            self.model.live[id_] = replace(m, expired=False)

    @rule(
        pick=picks,
        shift=shifts,
        status=st.just("success") | dead_statuses,
        details=texts,
        result=payloads,
    )
    def finish(self, pick: int, shift: int, status: str, details: str | None, result: Any) -> None:
        id_ = self.known(pick)
        m = self.model.lock(id_, token := self.token(id_, shift))
        held = self.call(
            "finish", id=id_, lock_token=token, status=status, details=details, result=[result]
        )
        assert held == (m is not None)
        if m is not None:
            self.model.finish(m, status, details, [result])

    @rule(chosen=st.lists(st.tuples(picks, shifts), max_size=4))
    def finish_many(self, chosen: list[tuple[int, int]]) -> None:
        pairs = [(id_ := self.known(pick), self.token(id_, shift)) for pick, shift in chosen]
        ended = self.ids(
            "finish_many",
            ids=[id_ for id_, _ in pairs],
            lock_tokens=[token for _, token in pairs],
            statuses=["success"] * len(pairs),
        )
        held = {m.id: m for pair in pairs if (m := self.model.lock(*pair)) is not None}
        assert sorted(ended) == sorted(held)
        for m in held.values():
            self.model.finish(m, "success", None)

    @rule(pick=picks, shift=shifts, later=st.booleans())
    def release(self, pick: int, shift: int, *, later: bool) -> None:
        id_ = self.known(pick)
        m = self.model.lock(id_, token := self.token(id_, shift))
        held = self.session.run(
            self.session.ours.fetchval(
                "select messages.release($1, $2, $3::text::interval)",
                id_,
                token,
                "1 day" if later else None,
            )
        )
        assert held == (m is not None)
        if m is not None:
            self.model.requeue(m, m.details, later=later, burned=False)

    @rule(worker=st.sampled_from(WORKERS), pick=picks)
    def release_orphans(self, worker: str, pick: int) -> None:
        known = [self.known(pick)]
        orphans = [
            m for m in self.model.live.values() if m.locked_by == worker and m.id not in known
        ]
        assert self.call("notifyq.release_orphans", worker=worker, known=known) == len(orphans)
        for m in orphans:
            self.model.requeue(m, m.details, later=False, burned=False)

    @rule(
        pick=picks,
        shift=shifts,
        delay=st.sampled_from((None, None, "0", "1 day")),
        status=dead_statuses,
        details=texts,
    )
    def retry(
        self, pick: int, shift: int, delay: str | None, status: str, details: str | None
    ) -> None:
        id_ = self.known(pick)
        m = self.model.lock(id_, token := self.token(id_, shift))
        held = self.session.run(
            self.session.ours.fetchval(
                "select messages.retry($1, $2, $3::text::interval, $4, $5)",
                id_,
                token,
                delay,
                details,
                status,
            )
        )
        assert held == (m is not None)
        if m is not None:
            later = None if delay is None else delay != "0"
            self.model.retry(m, status, details, later=later)

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        m = self.model.live.get(id_ := self.known(pick))
        may = m is not None and m.state != "locked" and m.id not in self.model.held
        assert self.call("cancel", id=id_) == may
        if m is not None and may:
            self.model.cancel(m)

    # Time passes

    @precondition(lambda self: any(m.state == "locked" for m in self.model.live.values()))
    @rule(pick=picks)
    def expire(self, pick: int) -> None:
        locked = sorted(m.id for m in self.model.live.values() if m.state == "locked")
        id_ = locked[pick % len(locked)]
        self.session.run(expire(self.session.ours, id_))
        self.model.live[id_] = replace(self.model.live[id_], expired=True)

    @rule(pick=picks)
    def come_due(self, pick: int) -> None:
        later = sorted(
            m.id
            for m in self.model.live.values()
            if m.state == "scheduled" and not m.due and m.id not in self.model.held
        )
        due = sum(m.state == "scheduled" and m.due for m in self.model.live.values())
        if later and due < _MOST_DUE:
            id_ = later[pick % len(later)]
            self.session.run(make_due(self.session.ours, id_))
            self.model.live[id_] = replace(self.model.live[id_], due=True)

    # Maintenance

    @rule(quantity=quantities)
    def reap(self, quantity: int) -> None:
        assert self.call("reap", quantity=quantity) == self.model.reap(quantity)

    @rule()
    def stage_due(self) -> None:
        assert self.call("stage_due") == self.model.stage_due()

    @rule()
    def maintain(self) -> None:
        (report,) = self.rows("maintain")
        assert (report["reaped"], report["staged"]) == (
            self.model.reap(1000),
            self.model.stage_due(),
        )

    # A second session, with a transaction that stays open until it commits, gives up or crashes

    @precondition(lambda self: self.model.open is None)
    @rule(queue=queue_names, quantity=quantities, taking=st.booleans())
    def open_transaction(self, queue: str, quantity: int, *, taking: bool) -> None:
        if queue not in self.model.queues:
            return
        self.session.run(self.session.other.execute("begin"))
        if taking:
            expected, change = self.model.take(queue, quantity)
            taken = self.session.run(
                rows(self.session.other, "take", queue=queue, quantity=quantity)
            )
            assert [m["id"] for m in taken] == [m.id for m in expected]
        else:
            expected, change = self.model.claim([queue], quantity, "crasher")
            claimed = self.session.run(
                rows(
                    self.session.other, "claim", queues=[queue], quantity=quantity, worker="crasher"
                )
            )
            self.compare_claimed(claimed, expected)
        self.model.open = change

    @precondition(lambda self: self.model.open is not None)
    @rule(end=st.sampled_from(("commit", "rollback", "crash")))
    def end_transaction(self, end: str) -> None:
        if end == "crash":
            self.session.crash()
        else:
            self.session.run(self.session.other.execute(end))
        change, self.model.open = self.model.open, None
        if end == "commit" and change is not None:
            self.model.commit(change)

    # The dead

    @rule(chosen=st.lists(picks, max_size=3))
    def dead_retry(self, chosen: list[int]) -> None:
        ids = [self.finished(pick) for pick in chosen]
        old = sorted(set(ids) & set(self.model.dead(cancelled=None)))
        if any(self.model.archive[id_].last.queue not in self.model.queues for id_ in old):
            with pytest.raises(QueueNotFoundError):
                self.variadic("dead_retry", ids)
            return
        self.model.redrive(old, self.variadic("dead_retry", ids))

    @rule(queue=st.none() | queue_names, status=st.none() | dead_statuses)
    def redrive(self, queue: str | None, status: str | None) -> None:
        if queue is not None and queue not in self.model.queues:
            with pytest.raises(QueueNotFoundError):
                self.call("redrive", queue=queue, status=status)
            return
        quantity = self.call("redrive", queue=queue, status=status)
        old = [
            id_
            for id_ in self.model.dead(queue, status)
            if self.model.archive[id_].last.queue in self.model.queues
        ]
        assert quantity == len(old)
        # Only the server knows the new ids.
        pairs = self.session.run(
            self.session.ours.fetch(
                "select message_id from notifyq.redrive where archive_id = any ($1) "
                "order by archive_id",
                old,
            )
        )
        self.model.redrive(old, [row[0] for row in pairs])

    @rule(chosen=st.lists(picks, max_size=2))
    def dead_delete(self, chosen: list[int]) -> None:
        ids = [self.finished(pick) for pick in chosen]
        assert self.variadic("dead_delete", ids) == [self.model.delete(ids)]
