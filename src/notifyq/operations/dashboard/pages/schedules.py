"""Schedules: when each fires, and how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.operations.dashboard.section import Section

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View

section = Section("schedules", "Schedules", key="c")


@section.page("/schedules", "schedules")
async def schedules(view: View) -> Response:
    """All schedules."""
    rows = await view.database.fetch(sql.SCHEDULE_INFO, None)
    return view.render(
        "schedules.html",
        title="Schedules",
        rows=[(row, view.masks.text(row["message"], indent=None)) for row in rows],
    )


@section.action("/schedules/run", "run_schedule")
async def run(view: View) -> Response:
    """Publish the message of a schedule now."""
    name = view.form.get("name", "")
    async with view.acting("schedule.run", name) as act:
        id_ = await act.connection.fetchval(sql.RUN_SCHEDULE, name)
        act.details["message"] = id_
    return view.back(f"{name} has run: it published message {id_}.")


@section.action("/schedules/enable", "enable_schedule")
async def enable(view: View) -> Response:
    """Let a schedule fire again."""
    return await _switch(view, "enable", sql.ENABLE_SCHEDULE)


@section.action("/schedules/disable", "disable_schedule")
async def disable(view: View) -> Response:
    """Stop a schedule until it is enabled again."""
    return await _switch(view, "disable", sql.DISABLE_SCHEDULE)


async def _switch(view: View, verb: str, statement: str) -> Response:
    name = view.form.get("name", "")
    changed = await view.change(f"schedule.{verb}", name, statement)
    return view.back(f"{verb.capitalize()}d {name}." if changed else f"{name} was {verb}d already.")
