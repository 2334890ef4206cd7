"""The log as a sink of events."""

import logging
from dataclasses import fields

import pytest

from notifyq.telemetry import (
    Event,
    HandlerStuck,
    ListenerLost,
    LockLost,
    MessagesClaimed,
    WorkerStarted,
    log_sink,
)


def test_an_event_is_logged_by_its_name_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "notifyq"):
        log_sink(MessagesClaimed(quantity=2, queues=("a", "b"), by_queue={"a": 2}))
    (record,) = caplog.records
    assert record.getMessage() == "MessagesClaimed"
    assert record.levelno == logging.DEBUG
    assert record.name == "notifyq"
    assert vars(record)["event"] == {
        "quantity": 2,
        "queues": ("a", "b"),
        "by_queue": {"a": 2},
        "since_bell": None,
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
def test_an_event_has_a_level_by_what_it_asks_of_people(event: Event, level: int) -> None:
    assert event.level == level


def test_an_event_below_the_level_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "notifyq"):
        log_sink(MessagesClaimed(quantity=2, queues=()))
    assert caplog.records == []


def test_the_fields_do_not_collide_with_those_of_a_log_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "notifyq"):
        for kind in Event.__subclasses__():
            values = dict.fromkeys((field.name for field in fields(kind)), 0)
            log_sink(kind(**values))
    assert len(caplog.records) == len(Event.__subclasses__()) > 8
