"""The backend for Django's tasks: they are enqueued in a transaction, called, and have results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.transaction import atomic, set_rollback

from integrations import django_functions
from integrations.connections import Watcher, django
from notifyq import App, ConfigurationError, within
from notifyq.contrib.django import database as of_django
from notifyq.contrib.django import tasks as of_notifyq
from notifyq.testing import Sandbox

functions: Any = django_functions
tasks: Any = of_notifyq
TaskResultDoesNotExist, TaskResultStatus = tasks.TaskResultDoesNotExist, tasks.TaskResultStatus
Drain = Callable[..., None]


@pytest.fixture(autouse=True)
def _django(database: str) -> Iterator[None]:
    with ExitStack() as stack:
        django(database, stack)
        connections["other"].cursor().execute("select messages.create_queue('mail')")
        yield


@pytest.fixture
def drain(database: str) -> Drain:
    """Give a function that lets a worker call everything, some seconds later."""

    async def work(later: float) -> None:
        app = App(database)
        tasks.serve_tasks(app)
        async with Sandbox(app, database) as sandbox:
            if later:
                await sandbox.advance(later)
            await sandbox.drain(check=False)

    def drain(later: float = 0) -> None:
        asyncio.run(work(later))

    return drain


@pytest.fixture
def finished() -> Iterator[list[Any]]:
    """Give the statuses that the signal for finished ones has reported."""
    seen: list[Any] = []

    def note(sender: Any, task_result: Any, **_: Any) -> None:
        seen.append(task_result.status)

    tasks.task_finished.connect(note)
    yield seen
    tasks.task_finished.disconnect(note)


def test_it_is_enqueued_if_the_transaction_commits(watcher: Watcher) -> None:
    with atomic(using="other"):
        functions.add.enqueue(1)
        set_rollback(True, using="other")
    due = datetime(2050, 1, 1, tzinfo=UTC)
    with atomic(using="other"):
        result = functions.add.using(priority=-100, run_after=due, queue_name="mail").enqueue(
            1, b=2
        )
        assert not watcher.ids()
    [message] = watcher.messages()
    assert str(message["id"]) == result.id
    assert message["message"] == {"args": [1], "kwargs": {"b": 2}}
    assert message["type"] == "integrations.django_functions.add"
    assert (message["queue"], message["priority"]) == ("mail", -100)
    assert (message["available_at"], message["max_attempts"]) == (due, 2)
    found = functions.add.get_result(result.id)
    assert found.status == TaskResultStatus.READY
    assert (found.task.run_after, found.task.priority, found.task.queue_name) == (due, -100, "mail")


def test_what_is_no_json_is_not_enqueued(watcher: Watcher) -> None:
    with pytest.raises(TypeError):
        functions.add.enqueue(datetime.now(UTC))
    assert not watcher.ids()


def test_a_result_has_what_the_function_returned(drain: Drain, finished: list[Any]) -> None:
    results = [functions.add.enqueue(1, b=2), functions.greet.enqueue(name="Ada")]
    assert [it.status for it in results] == [TaskResultStatus.READY] * 2
    drain()
    for result in results:
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert result.attempts == 1
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.started_at == result.last_attempted_at
        assert result.worker_ids[0]
        assert not result.errors
    assert [it.return_value for it in results] == [3, {"text": ["hello Ada"]}]
    assert finished == [TaskResultStatus.SUCCESSFUL] * 2


def test_a_failed_attempt_is_repeated(drain: Drain, finished: list[Any]) -> None:
    result = functions.flaky.enqueue(2)
    drain()
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 1)
    assert result.errors[0].exception_class is LookupError
    assert not finished
    drain(later=61)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)
    assert (result.return_value, len(result.errors)) == (2, 1)
    assert result.started_at < result.last_attempted_at
    assert finished == [TaskResultStatus.SUCCESSFUL]


def test_after_the_last_attempt_it_has_failed(drain: Drain, finished: list[Any]) -> None:
    result = functions.flaky.enqueue(3)
    drain()
    drain(later=61)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [error.exception_class for error in result.errors] == [LookupError] * 2
    assert "LookupError: attempt 2 of " in result.errors[1].traceback
    with pytest.raises(ValueError, match="failed"):
        assert result.return_value
    assert finished == [TaskResultStatus.FAILED]


@pytest.mark.parametrize(
    ("task", "error"),
    [(functions.refused, "notifyq.Reject"), (functions.unspeakable, "builtins.TypeError")],
    ids=["rejected", "no JSON"],
)
def test_what_no_attempt_can_help_fails(
    drain: Drain, finished: list[Any], task: Any, error: str
) -> None:
    result = task.enqueue()
    drain()
    drain(later=61)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert {found.exception_class_path for found in result.errors} == {error}
    assert finished == [TaskResultStatus.FAILED]


def test_a_running_one_is_running() -> None:
    result = functions.add.enqueue(1)
    with connections["other"].cursor() as cursor:
        cursor.execute("select from messages.claim_id(%s, worker => 'me')", [result.id])
    result.refresh()
    assert (result.status, result.worker_ids) == (TaskResultStatus.RUNNING, ["me"])
    assert result.started_at


@pytest.mark.parametrize(
    "id_", ["99", "x", "", "9" * 30, pytest.param("9" * 5000, id="many digits"), "-1"]
)
def test_an_unknown_result_does_not_exist(id_: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        functions.add.get_result(id_)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("integrations.django_functions.absent", "absent is no task of Django: Module"),
        ("integrations.django_functions.no_task", "no_task is no task of Django"),
        (None, "None is no task of Django"),
    ],
)
def test_only_tasks_are_called(drain: Drain, name: str | None, reason: str) -> None:
    call: Any = {"args": [], "kwargs": {}}
    number = within.publish(connections["other"], "default", call, type=name)
    drain()
    with connections["other"].cursor() as cursor:
        cursor.execute("select status, details from messages.archive_find(%s)", [number])
        status, details = cursor.fetchone()
    assert status == "rejected"
    assert reason in details
    with pytest.raises(TaskResultDoesNotExist):
        functions.add.get_result(str(number))


def test_its_check_reports_another_database(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = tasks.task_backends["default"]
    assert not backend.check()
    monkeypatch.setattr(connections["other"], "vendor", "sqlite")
    [error] = backend.check()
    assert "'other' of Django is sqlite" in error.msg
    with pytest.raises(ConfigurationError, match="name another entry of DATABASES"):
        of_django.dsn()


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"HOST": "::1", "PORT": 5433, "USER": "a b", "PASSWORD": "p@/:"}, None),
        ({"OPTIONS": {"sslmode": "require", "prepare_threshold": 5}}, "sslmode=require"),
        ({"OPTIONS": {"assume_role": "shop"}}, "options=-c%20role%3Dshop"),
        ({"OPTIONS": {"pool": True, "connect_timeout": 3}, "CONN_MAX_AGE": 0}, "connect_timeout=3"),
    ],
)
def test_the_dsn_is_that_of_the_database_of_django(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], wanted: str | None
) -> None:
    given = connections["other"].settings_dict
    for name, value in ({"HOST": "h", "NAME": "d", "OPTIONS": {}} | changed).items():
        monkeypatch.setitem(given, name, value)
    dsn = of_django.dsn()
    assert (wanted or "a%20b:p%40%2F%3A@[::1]:5433/d") in dsn


def test_a_delay_is_over_before_it_is_called(drain: Drain) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    result = functions.add.using(run_after=later).enqueue(1)
    drain()
    result.refresh()
    assert result.status == TaskResultStatus.READY
    drain(later=3601)
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
