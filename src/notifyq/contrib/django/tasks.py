"""A backend for the tasks of Django, which enqueues in Django's transaction.

    TASKS = {"default": {"BACKEND": "notifyq.contrib.django.tasks.NotifyqBackend"}}

`django.tasks` is a part of Django 6; for Django 5 the package django-tasks has the same API.
"""

from __future__ import annotations

import json
from traceback import format_exception
from typing import Any

from django.core import checks
from django.utils import timezone
from django.utils.module_loading import import_string

try:
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

from notifyq import within
from notifyq.contrib.django.database import connection, fetch
from notifyq.database import statements as sql
from notifyq.errors import ConfigurationError
from notifyq.handlers.decorators import Decorators
from notifyq.handlers.retries import Reject
from notifyq.models.message import ArchivedMessage, Attempt, Message, State, Status

_ERRORS = {Status.LOCK_EXPIRED: "notifyq.LockExpiredError", Status.REJECTED: "notifyq.Reject"}
"""Errors of attempts that have no exception: a killed worker, a cancelled message."""


class NotifyqBackend(BaseTaskBackend):
    """Publishes on Django's connection: a task exists if its transaction commits.

    OPTIONS are those of a handler, such as `max_attempts` (1), `backoff` and `timeout`. Every queue
    of QUEUES is a queue of notifyq. The id of a result is that of the message.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Publish a message that calls the function."""
        self.validate_task(task)
        call = normalize_json({"args": args, "kwargs": kwargs})
        message_id = within.publish(
            connection(),
            task.queue_name,
            call,
            type=task.module_path,
            priority=task.priority,
            available_at=task.run_after,
            max_attempts=self.max_attempts,
        )
        result = TaskResult(
            task=task,
            id=str(message_id),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=call["args"],
            kwargs=call["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read the state of a message on Django's connection; its role needs `notifyq_reader`."""
        found = _find(result_id)
        if found is None or found.queue not in (self.queues or {found.queue}):
            raise TaskResultDoesNotExist(result_id)
        failed = [Attempt.from_row(row) for row in fetch(sql.ATTEMPTS, found.id)]
        try:
            return self._result(found, failed)
        except Reject as error:
            raise TaskResultDoesNotExist(result_id) from error

    def check(self, **_: Any) -> list[Any]:
        """Report a database that is not PostgreSQL."""
        try:
            connection()
        except ConfigurationError as error:
            return [checks.Error(str(error), id="notifyq.E001")]
        return []

    @property
    def max_attempts(self) -> int:
        """How often a function is called at most, until it succeeds."""
        return int(self.options.get("max_attempts", 1))

    def serve(self, app: Decorators) -> None:
        """Register the handlers of its queues."""

        def call(message: Message) -> Any:
            return self._call(message)

        for queue in sorted(self.queues):
            app.handler(queue, **self.options)(call)

    def _call(self, message: Message) -> Any:
        result = self._result(message, [])
        task_started.send(type(self), task_result=result)
        task = result.task
        context = [TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        except BaseException as error:
            if message.attempts >= self.max_attempts or isinstance(error, Reject):
                kind = type(error)
                found = TaskError(
                    exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                    traceback="".join(format_exception(error)),
                )
                self._finish(result, TaskResultStatus.FAILED, errors=[found])
            raise
        self._finish(result, TaskResultStatus.SUCCESSFUL, _return_value=value)
        return value

    def _finish(self, result: Any, status: Any, **values: Any) -> None:
        """Report the end as Django's own backends do; the server archives it a moment later."""
        for name, value in {**values, "status": status, "finished_at": timezone.now()}.items():
            object.__setattr__(result, name, value)
        task_finished.send(type(self), task_result=result)

    def _result(self, found: Message | ArchivedMessage, failed: list[Attempt]) -> Any:
        call = found.payload()
        status, worker = _status_of(found)
        workers = [attempt.handled_by or "" for attempt in failed]
        if worker is not None:
            # Without the history, as in a worker: it is the one of each attempt.
            workers += [worker] * (found.attempts - len(workers) if not failed else 1)
        result = TaskResult(
            task=self._task(found),
            id=str(found.id),
            status=status,
            enqueued_at=found.created_at,
            started_at=failed[0].locked_at if failed else found.locked_at,
            finished_at=found.archived_at if isinstance(found, ArchivedMessage) else None,
            last_attempted_at=found.locked_at or (failed[-1].locked_at if failed else None),
            args=call["args"],
            kwargs=call["kwargs"],
            backend=self.alias,
            errors=[_error_of(attempt) for attempt in failed],
            worker_ids=workers,
        )
        if status == TaskResultStatus.SUCCESSFUL:
            text = getattr(found, "result", None)
            object.__setattr__(result, "_return_value", None if text is None else json.loads(text))
        return result

    def _task(self, found: Message | ArchivedMessage) -> Any:
        """The task that the type of a message names; raises Reject for any other object."""
        try:
            task = import_string(found.type or "")
        except ImportError as error:
            raise Reject(f"{found.type} is no task of Django: {error}") from error
        if not isinstance(task, Task):
            raise Reject(f"{found.type} is no task of Django")
        is_deferred = found.available_at > found.created_at
        return task.using(
            priority=found.priority,
            queue_name=found.queue,
            run_after=found.available_at if is_deferred else None,
            backend=self.alias,
        )


def serve_tasks(app: Decorators) -> None:
    """Register handlers for the queues of all backends of TASKS that are of this class."""
    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, NotifyqBackend):
            backend.serve(app)


def _find(result_id: str) -> Message | ArchivedMessage | None:
    if not result_id.isdecimal() or len(result_id) > 19 or int(result_id) >= 2**63:
        return None
    # The archive last: a message may move there between the two statements.
    for kind, statement in ((Message, sql.MESSAGE_FIND), (ArchivedMessage, sql.ARCHIVE_FIND)):
        for row in fetch(statement, int(result_id)):
            found: Message | ArchivedMessage = kind.from_row(row)
            return found
    return None


def _status_of(found: Message | ArchivedMessage) -> tuple[Any, str | None]:
    """The status, and the worker of an attempt that has not failed."""
    if isinstance(found, Message):
        if found.state == State.LOCKED:
            return TaskResultStatus.RUNNING, found.locked_by or ""
        return TaskResultStatus.READY, None
    if found.status == Status.SUCCESS:
        return TaskResultStatus.SUCCESSFUL, found.handled_by or ""
    return TaskResultStatus.FAILED, None


def _error_of(attempt: Attempt) -> Any:
    name = attempt.error_type or _ERRORS.get(Status(attempt.status), "Exception")
    return TaskError(
        exception_class_path=name if "." in name else f"builtins.{name}",
        traceback=attempt.traceback or attempt.details or "",
    )
