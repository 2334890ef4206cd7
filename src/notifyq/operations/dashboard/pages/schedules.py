"""Schedules: when each fires, and its last run."""

from starlette.responses import Response

from notifyq.database import statements as sql
from notifyq.operations import monitor
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View

section = Section("schedules", "Schedules", key="c")
section.switch("schedule.enable", sql.ENABLE_SCHEDULE, "Enabled")
section.switch("schedule.disable", sql.DISABLE_SCHEDULE, "Disabled")


@section.page("/schedules", "schedules")
async def schedules(view: View) -> Response:
    """All schedules."""
    database, cache = view.database, view.dashboard.cache
    backlog = cache.get(("backlog", None), 1, lambda: monitor.backlog(database))
    queues = await view.parts.read("backlog", backlog, [])
    rows = await database.fetch(sql.SCHEDULE_INFO, None)
    return view.render(
        "schedules.html",
        title="Schedules",
        unserved={it.queue for it in queues if it.is_unserved},
        rows=[(row, view.masks.text(row["message"], indent=None)) for row in rows],
    )


@section.action("/schedules/run", "run_schedule")
async def run(view: View) -> Response:
    """Publish the message of a schedule now."""
    name = view.form.get("name", "")
    async with view.acting("schedule.run", name) as act:
        id_ = await act.value(sql.RUN_SCHEDULE, name)
        act.note(message=id_)
    return view.back(f"{name} has run: it published message {id_}.")
