"""The log as a telemetry of events."""

import logging
from dataclasses import fields

import pytest

from notifyq.telemetry import (
    HandlerStuck,
    ListenerLost,
    LockLost,
    MessagesClaimed,
    TelemetryEvent,
    WorkerStarted,
    log_events,
)


def test_an_event_is_logged_by_its_name_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "notifyq"):
        log_events(MessagesClaimed(quantity=2, queues=("a", "b"), by_queue={"a": 2}))
    (record,) = caplog.records
    assert record.getMessage() == "MessagesClaimed"
    assert record.levelno == logging.DEBUG
    assert record.name == "notifyq"
    assert vars(record)["event"] == {
        "quantity": 2,
        "queues": ("a", "b"),
        "by_queue": {"a": 2},
        "since_notification": None,
    }


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (WorkerStarted(worker="w", queues=("q",)), logging.INFO),
        (MessagesClaimed(quantity=1, queues=("q",)), logging.DEBUG),
        (LockLost(queue="q", message_id=1, lock_token=1), logging.WARNING),
        (ListenerLost(error="x"), logging.WARNING),
        (HandlerStuck(queue="q", message_id=1), logging.WARNING),
    ],
)
def test_an_event_has_a_log_level(event: TelemetryEvent, level: int) -> None:
    assert event.level == level


def test_an_event_below_the_log_level_is_not_built(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "notifyq"):
        log_events(MessagesClaimed(quantity=2, queues=()))
    assert caplog.records == []


def test_the_fields_do_not_collide_with_those_of_a_log_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "notifyq"):
        for kind in TelemetryEvent.__subclasses__():
            values = dict.fromkeys((field.name for field in fields(kind)), 0)
            log_events(kind(**values))
    assert len(caplog.records) == len(TelemetryEvent.__subclasses__()) > 8
