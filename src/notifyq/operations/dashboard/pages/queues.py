"""Queues: what waits in each, and what may be changed about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import sql
from notifyq.errors import InvalidArgumentError, QueueNotFoundError, reason
from notifyq.operations import monitor
from notifyq.operations.dashboard import policy, statements
from notifyq.operations.dashboard.section import Section

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View

section = Section("queues", "Queues", key="q")

_RECENT = timedelta(minutes=5)
_MINUTE = timedelta(minutes=1)


@section.page("/queues", "queues")
async def queues(view: View) -> Response:
    """All queues as a table."""
    database, cache = view.database, view.desk.cache
    policies = await cache.get("names", 5, lambda: database.fetch(statements.QUEUE_LIST, None))
    rows = await cache.get(("backlog", None), 1, lambda: monitor.backlog(database))
    by_name = {row.queue: row for row in rows}
    search = view.query("search").casefold()
    recent = await _recent(view)
    shown = [
        (row, by_name[row["name"]], recent.get(row["name"], {}))
        for row in policies
        if row["name"] in by_name and search in row["name"].casefold()
    ]
    return view.render("queues.html", title="Queues", rows=shown, limits=_limits, recent=_RECENT)


@section.page("/queue", "queue")
async def queue(view: View) -> Response:
    """One queue: what is in it, and its policy."""
    return await _queue(view, view.query("name"))


@section.action("/queues/pause", "pause_queue")
async def pause(view: View) -> Response:
    """Hand out no more of a queue."""
    name = view.form.get("name", "")
    changed = await view.change("queue.pause", name, sql.PAUSE_QUEUE)
    return view.back(f"Paused {name}." if changed else f"{name} was paused already.")


@section.action("/queues/resume", "resume_queue")
async def resume(view: View) -> Response:
    """Hand out the messages of a queue again."""
    name = view.form.get("name", "")
    changed = await view.change("queue.resume", name, sql.RESUME_QUEUE)
    return view.back(f"Resumed {name}." if changed else f"{name} was not paused.")


@section.action("/queues/alter", "alter_queue")
async def alter(view: View) -> Response:
    """Change the policy of a queue: only what is otherwise than it was."""
    name = view.form.get("name", "")
    row = await _policy(view, name)
    changes, wrong = policy.read(view.form, row)
    if wrong:
        return await _queue(view, name, said=view.form, wrong=wrong)
    if not changes:
        return view.redirect(view.url("queue", name=name), "Nothing was changed.")
    try:
        async with view.acting("queue.alter", name) as act:
            await act.connection.fetch(sql.ALTER_QUEUE, name, *policy.arguments(changes))
            [changed] = await act.connection.fetch(statements.QUEUE_LIST, name)
            was, now = policy.values(row), policy.values(dict(changed))
            act.details.update({key: [was[key], now[key]] for key in changes})
    except (InvalidArgumentError, asyncpg.SyntaxOrAccessError) as error:  # or no such type
        return await _queue(view, name, said=view.form, refused=reason(error))
    return view.redirect(view.url("queue", name=name), f"Changed {', '.join(sorted(changes))}.")


async def _queue(
    view: View,
    name: str,
    *,
    said: Any = None,
    wrong: dict[str, str] | None = None,
    refused: str = "",
) -> Response:
    row = await _policy(view, name)
    [backlog] = await monitor.backlog(view.database, name)
    shown = policy.values(row)
    if said is not None:
        flags = {field.name: "" for field in policy.FIELDS if field.kind == "flag"}
        shown = {**shown, **flags, **{key: said[key] for key in shown if key in said}}
    return view.render(
        "queue.html",
        status=422 if wrong or refused else 200,
        title=name,
        row=row,
        backlog=backlog,
        groups=policy.GROUPS,
        values=shown,
        wrong=wrong or {},
        refused=refused,
    )


async def _policy(view: View, name: str) -> Any:
    rows = await view.database.fetch(statements.QUEUE_LIST, name)
    if not rows:
        raise QueueNotFoundError(f"there is no queue {name!r}")
    return rows[0]


async def _recent(view: View) -> dict[str, dict[str, Any]]:
    """Of each queue, what was finished in the last minutes."""

    async def ask() -> dict[str, dict[str, Any]]:
        until = datetime.now(UTC)
        found = await monitor.throughput(
            view.database, since=until - _RECENT, until=until, step=_MINUTE,
            by_queue=True,
        )  # fmt: skip
        rows: dict[str, dict[str, Any]] = {}
        for point in found.points:
            row = rows.setdefault(point.queue or "", {"finished": 0, "dead": 0, "run": None})
            if point.status is None:
                row["finished"] += point.finished
                row["run"] = max(filter(None, (row["run"], point.run_p95)), default=None)
            elif point.status != "success":
                row["dead"] += point.finished
        return rows

    found: dict[str, dict[str, Any]] = await view.desk.cache.get("recent", 5, ask)
    return found


def _limits(row: Any) -> list[str]:
    """What limits a queue, in short."""
    found = []
    if row["concurrency"]:
        found.append(f"{row['concurrency']} at a time")
    if row["rate"]:
        found.append(f"{row['rate']} in {policy.duration(row['rate_period'])}")
    if row["key_concurrency"]:
        found.append(f"{row['key_concurrency']} of a key")
    if row["key_rate"]:
        found.append(f"{row['key_rate']} of a key in {policy.duration(row['key_rate_period'])}")
    if row["capacity"]:
        found.append(f"capacity {row['capacity']:,}")
    return found + [name for name in ("ordered", "fair") if row[name]]
