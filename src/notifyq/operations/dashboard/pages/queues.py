"""Queues: their backlog and their policy."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from starlette.responses import Response

from notifyq.database import statements as sql
from notifyq.errors import InvalidArgumentError, QueueNotFoundError, reason
from notifyq.operations import monitor
from notifyq.operations.dashboard import policy, statements
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.queues.policy import ALTER_QUEUE, Policy

section = Section("queues", "Queues", key="q")
section.switch("queue.pause", sql.PAUSE_QUEUE, "Paused")
section.switch("queue.resume", sql.RESUME_QUEUE, "Resumed")

_RECENT = timedelta(minutes=5)
_MINUTE = timedelta(minutes=1)


@section.page("/queues", "queues")
async def queues(view: View) -> Response:
    """All queues as a table."""
    database, cache = view.database, view.dashboard.cache
    policies = await cache.get("names", 5, lambda: database.fetch(statements.QUEUE_LIST, None))
    rows = await cache.get(("backlog", None), 1, lambda: monitor.backlog(database))
    by_name = {row.queue: row for row in rows}
    search = view.query("search").casefold()
    recent = await view.parts.read("recent", cache.get("recent", 5, lambda: _recent(view)), {})
    shown = [
        (row, by_name[row["name"]], recent.get(row["name"], {}))
        for row in policies
        if row["name"] in by_name and search in row["name"].casefold()
    ]
    return view.render("queues.html", title="Queues", rows=shown, limits=_limits, recent=_RECENT)


@section.page("/queue", "queue")
async def queue(view: View) -> Response:
    """One queue: its messages, and its policy."""
    return await _queue(view, view.query("name"))


@section.action("/queues/alter", "alter_queue")
async def alter(view: View) -> Response:
    """Change the options that differ from the current policy."""
    name = view.form.get("name", "")
    row = await _policy(view, name)
    changes, wrong = policy.read(view.form, row)
    if wrong:
        return await _queue(view, name, wrong=wrong)
    if not changes:
        return view.redirect(view.url("queue", name=name), "Nothing was changed.")
    try:
        async with view.acting("queue.alter", name) as act:
            await act.fetch(ALTER_QUEUE, name, *Policy(**changes).args())
            [changed] = await act.fetch(statements.QUEUE_LIST, name)
            was, now = policy.values(row), policy.values(dict(changed))
            act.note(**{key: [was[key], now[key]] for key in changes})
    except (InvalidArgumentError, asyncpg.SyntaxOrAccessError) as error:  # or no such type
        return await _queue(view, name, refused=reason(error))
    return view.redirect(view.url("queue", name=name), f"Changed {', '.join(sorted(changes))}.")


async def _queue(
    view: View, name: str, *, wrong: dict[str, str] | None = None, refused: str = ""
) -> Response:
    """The page of a queue; after a refused change it keeps the input."""
    row = await _policy(view, name)
    backlog = await view.parts.read("backlog", monitor.backlog(view.database, name), [])
    shown = policy.values(row)
    if wrong or refused:
        flags = {field.name: "" for field in policy.FIELDS if field.kind == "flag"}
        shown = {**shown, **flags, **{key: view.form[key] for key in shown if key in view.form}}
    return view.render(
        "queue.html",
        status=422 if wrong or refused else 200,
        title=name,
        row=row,
        backlog=backlog[0] if backlog else None,
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
    """The messages that each queue finished in the last minutes."""
    until = datetime.now(UTC)
    found = await monitor.throughput(
        view.database, since=until - _RECENT, until=until, step=_MINUTE, by_queue=True
    )
    rows: dict[str, dict[str, Any]] = {}
    for point in found.points:
        row = rows.setdefault(point.queue or "", {"finished": 0, "run": None})
        if point.status is None:
            row["finished"] += point.finished
            row["run"] = max(filter(None, (row["run"], point.run_p95)), default=None)
    return rows


def _limits(row: Any) -> list[str]:
    """The limits of a queue, in short."""
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
