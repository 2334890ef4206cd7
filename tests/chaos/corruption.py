"""Ways to violate one invariant in a correct history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeAlias

from notifyq.chaos.final import Final, Row
from notifyq.chaos.history import Call, Op, calls

Broken: TypeAlias = "Iterator[tuple[list[Op], Final]]"
Corruption: TypeAlias = "Callable[[list[Op], Final], Broken]"

MICROSECOND = timedelta(microseconds=1)


def a_row_is_gone(ops: list[Op], final: Final) -> Broken:
    known = {call.fields["id"] for call in acknowledged(ops)}
    for row in final.archive:
        if row.id in known:
            yield ops, replace(final, archive=[it for it in final.archive if it is not row])


def a_stranger_is_there(ops: list[Op], final: Final) -> Broken:
    for row in final.archive:
        yield ops, replace(final, archive=[*final.archive, replace(row, id=-1, key="nobody's")])


def a_row_is_doubled(ops: list[Op], final: Final) -> Broken:
    for row in final.archive:
        yield ops, replace(final, archive=[*final.archive, row])


def a_row_is_in_both_tables(ops: list[Op], final: Final) -> Broken:
    for row in final.archive:
        yield ops, replace(final, live=[replace(row, status=None, state="waiting")])


def an_older_token_is_archived(ops: list[Op], final: Final) -> Broken:
    granted = {(m["id"], m["lock_token"]) for _, m in claimed(ops)}
    for row in final.archive:
        if (row.id, row.lock_token) in granted:
            yield ops, exchange(final, row, replace(row, lock_token=row.lock_token - 1))


def a_refused_finish_is_acknowledged(ops: list[Op], final: Final) -> Broken:
    # After a lost answer the checker cannot decide.
    unanswered = {lock(call) for call in calls(ops) if call.op == "finish" and unknown(call)}
    made = {(call.process, call.ended): call for call in calls(ops) if call.op == "finish"}
    for index, op in enumerate(ops):
        call = made.get((op.process, op.at))
        if call and op.fields.get("held") is False and lock(call) not in unanswered:
            yield changed(ops, index, {"held": True}), final


def an_ending_is_another(ops: list[Op], final: Final) -> Broken:
    finished = {
        (call.fields["id"], call.fields["lock_token"], call.fields["status"])
        for call in calls(ops)
        if call.op == "finish" and call.fields.get("held")
    }
    for row in final.archive:
        if (row.id, row.lock_token, row.status) in finished:
            yield ops, exchange(final, row, replace(row, status="lock_expired"))


def a_token_is_granted_twice(ops: list[Op], final: Final) -> Broken:
    for index, message in claimed(ops):
        op = ops[index]
        twin = Op(op.at, "second", "claim", "ok", 1, {"messages": [message]})
        start = replace(twin, type="invoke", fields={})
        yield [*ops[: index + 1], start, twin, *ops[index + 1 :]], final


def tokens_of_two_claims_are_exchanged(ops: list[Op], final: Final) -> Broken:
    for (early, first), (late, second) in followers(ops):
        swapped = with_message(ops, early, first, lock_token=second["lock_token"])
        yield with_message(swapped, late, second, lock_token=first["lock_token"]), final


def a_lock_is_granted_before_the_other_expired(ops: list[Op], final: Final) -> Broken:
    changed_since = {"extend", "finish", "release", "retry"}
    settled = {lock(call) for call in calls(ops) if call.op in changed_since}
    for (_, first), (late, second) in followers(ops):
        if (first["id"], first["lock_token"]) not in settled:
            instant = datetime.fromisoformat(first["lock_expires_at"]) - MICROSECOND
            yield with_message(ops, late, second, locked_at=instant.isoformat()), final


def a_lock_is_used_twice(ops: list[Op], final: Final) -> Broken:
    for op in ops:
        if op.op == "execute" and op.type == "invoke":
            yield [*ops, replace(op, at=ops[-1].at + 1, call=10**6)], final


def attempts_are_exceeded(ops: list[Op], final: Final) -> Broken:
    for row in final.archive:
        most = final.max_attempts[row.queue]
        yield ops, exchange(final, row, replace(row, attempts=most + 1))


def an_archived_payload_is_another(ops: list[Op], final: Final) -> Broken:
    for row in final.archive:
        yield ops, exchange(final, row, replace(row, digest="another"))


def an_executed_payload_is_another(ops: list[Op], final: Final) -> Broken:
    for index, op in enumerate(ops):
        if op.op == "execute" and op.type == "invoke":
            yield changed(ops, index, {"digest": "another"}), final


def a_dead_message_is_not_reported(ops: list[Op], final: Final) -> Broken:
    for index, op in enumerate(ops):
        if op.op == "dead":
            yield [*ops[:index], *ops[index + 1 :]], final


def a_message_waits_beyond_the_deadline(ops: list[Op], final: Final) -> Broken:
    known = {call.fields["id"] for call in acknowledged(ops)}
    for index, message in claimed(ops):
        if message["id"] in known and message["lock_token"] == 1:
            at = ops[index].at - 0.0001
            note = Op(at, "rig", "deadline", "ok", None, {})
            yield [*ops[:index], note, *ops[index:]], final


def a_message_is_left(ops: list[Op], final: Final) -> Broken:
    for row in final.archive:
        rest = [it for it in final.archive if it is not row]
        yield ops, replace(final, archive=rest, live=[replace(row, status=None, state="locked")])


def a_drain_does_not_end(ops: list[Op], final: Final) -> Broken:
    yield [op for op in ops if op.op != "drain" or op.type == "invoke"], final


CORRUPTIONS: dict[Corruption, str] = {
    a_row_is_gone: "lost",
    a_stranger_is_there: "unexpected",
    a_row_is_in_both_tables: "I1",
    a_row_is_doubled: "I2",
    an_older_token_is_archived: "I3",
    a_token_is_granted_twice: "I4",
    tokens_of_two_claims_are_exchanged: "I4",
    a_lock_is_granted_before_the_other_expired: "I5",
    a_lock_is_used_twice: "I5",
    attempts_are_exceeded: "I6",
    an_archived_payload_is_another: "I7",
    an_executed_payload_is_another: "I7",
    a_dead_message_is_not_reported: "I8",
    a_message_waits_beyond_the_deadline: "I9",
    a_refused_finish_is_acknowledged: "false_acknowledgement",
    an_ending_is_another: "false_acknowledgement",
    a_message_is_left: "unusable",
    a_drain_does_not_end: "unusable",
}
"""Each with the invariant that it breaks; others may break with it."""


def acknowledged(ops: Iterable[Op]) -> list[Call]:
    return [call for call in calls(ops) if call.op == "publish" and call.outcome == "ok"]


def unknown(call: Call) -> bool:
    return call.outcome == "unknown"


def lock(call: Call) -> tuple[int, int]:
    return call.fields["id"], call.fields["lock_token"]


def claimed(ops: list[Op]) -> list[tuple[int, dict[str, Any]]]:
    """Every message that a claim granted, with the index of the answer."""
    return [
        (index, message)
        for index, op in enumerate(ops)
        if op.op == "claim"
        for message in op.fields.get("messages", ())
    ]


def followers(ops: list[Op]) -> Iterator[tuple[tuple[int, dict[str, Any]], ...]]:
    """Every two grants of one message, one next to the other."""
    grants = claimed(ops)
    for id_ in sorted({message["id"] for _, message in grants}):
        yield from pairwise(it for it in grants if it[1]["id"] == id_)


def changed(ops: list[Op], index: int, fields: dict[str, Any]) -> list[Op]:
    op = ops[index]
    return [*ops[:index], replace(op, fields=op.fields | fields), *ops[index + 1 :]]


def with_message(ops: list[Op], index: int, message: dict[str, Any], **fields: Any) -> list[Op]:
    messages = [it | fields if it == message else it for it in ops[index].fields["messages"]]
    return changed(ops, index, {"messages": messages})


def exchange(final: Final, row: Row, other: Row) -> Final:
    return replace(final, archive=[other if it is row else it for it in final.archive])
