"""The sections of the dashboard, in the order of the navigation.

A page is added so:

1. A module here makes `section = Section("queues", "Queues", key="q")`.
2. `@section.page("/queues", "queues")` over `async def queues(view: View) -> Response` serves it;
   that of the navigation is named as its section. `view.render("queues.html", rows=rows)` answers.
3. `@section.action("/queues/pause", "pause_queue")` serves a form: only POST, with the form's
   token, from a page of ours, by who may write. It works inside of
   `async with view.acting("queue.pause", name) as act:` on `act.connection`, which writes the audit
   row in the same transaction, and answers with `view.back("Paused.")`.
4. Its template extends `base.html` and takes forms, tables and badges from `parts.html`.
5. The module is listed here, in `pyproject.toml`, and its pages in `tests/operations/dashboard`.

Names of queues and others go to the query (`view.url("queue", name=...)`), since they may have
slashes. Figures come from `notifyq.monitor`, and what may hold a payload through `view.masks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.operations.dashboard.pages import (
    audit,
    dead,
    entrance,
    health,
    message,
    messages,
    overview,
    queues,
    schedules,
    streams,
    workers,
)

if TYPE_CHECKING:
    from notifyq.operations.dashboard.section import Section

SECTIONS: tuple[Section, ...] = (
    overview.section,
    queues.section,
    messages.section,
    message.section,
    dead.section,
    streams.section,
    schedules.section,
    workers.section,
    health.section,
    audit.section,
    entrance.section,
)
