"""The totals of a demo: when they agree, and the text when they don't."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from notifyq.demo.run import Outcome
from notifyq.models.message import ArchivedMessage

START = datetime(2030, 1, 1, tzinfo=UTC)


def archived(id_: int, status: str = "success", *, is_locked: bool = True) -> ArchivedMessage:
    return ArchivedMessage(
        id=id_,
        queue="q",
        created_at=START,
        available_at=START,
        locked_at=START + timedelta(seconds=id_) if is_locked else None,
        archived_at=START + timedelta(seconds=id_ + 0.5),
        lock_token=1,
        priority=0,
        attempts=1,
        type=None,
        dedup_key=None,
        key=None,
        max_attempts=None,
        message="1",
        headers={},
        details=None,
        status=status,
        handled_by=None,
        result=None,
        subscriber=None,
        event_id=None,
    )


def test_each_message_once_agrees() -> None:
    outcome = Outcome([1, 2, 3], [archived(3), archived(1, "failed"), archived(2)], START)
    assert outcome.agrees
    assert outcome.seconds == 3.5
    assert sorted(outcome.waits) == [1, 2, 3]
    assert outcome.runs == [0.5, 0.5, 0.5]
    assert outcome.counts == {"success": 2, "failed": 1}
    assert [message.id for message in outcome.dead] == [1]


@pytest.mark.parametrize(
    ("published", "found", "difference"),
    [
        ([1, 2, 3], [1, 3], "3 published, 2 archived; not in the archive: 2"),
        ([1], [], "1 published, 0 archived; not in the archive: 1"),
        (
            [1],
            [1, 1],
            "1 published, 2 archived; not in the archive: none, but some are there twice",
        ),
        (
            list(range(20)),
            [],
            "20 published, 0 archived; not in the archive: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and more",
        ),
    ],
)
def test_other_outcomes_do_not_agree(
    published: list[int], found: list[int], difference: str
) -> None:
    outcome = Outcome(published, [archived(id_) for id_ in found], START)
    assert not outcome.agrees
    assert outcome.difference == difference


def test_message_that_was_never_locked_has_no_times() -> None:
    outcome = Outcome([1], [archived(1, "rejected", is_locked=False)], START)
    assert (outcome.waits, outcome.runs) == ([], [])
    assert Outcome([], [], START).seconds == 0
