"""The sections of the dashboard, in the order of the navigation.

To add a page:

1. A module here makes `section = Section("queues", "Queues", key="q")`.
2. `@section.page("/queues", "queues")` on `async def queues(view: View) -> Response` registers it;
   the navigation leads to the page named as its section. `view.render("queues.html", rows=rows)`
   responds.
3. `@section.action("/queues/alter", "alter_queue")` registers a form: a POST with the token of the
   form, from a page of this dashboard, by a user allowed to write. It uses `act.connection` within
   `async with view.acting("queue.alter", name) as act:`, which writes the audit row in the same
   transaction, and responds with `view.back("Changed.")`.
4. Its template extends `base.html` and uses forms, tables and badges from `parts.html`.
5. The module is listed here and in `pyproject.toml`, and tested in `tests/operations/dashboard`.

Names of objects are query parameters (`view.url("queue", name=...)`) because they may contain
slashes. Values come from `notifyq.operations.monitor`; payloads pass `view.masks`.
"""

from notifyq.operations.dashboard.pages import (
    audit,
    dead,
    health,
    login,
    message,
    messages,
    overview,
    parked,
    queues,
    schedules,
    streams,
    workers,
)
from notifyq.operations.dashboard.section import Section

_PAGES = (
    overview, queues, messages, message, parked, dead, streams, schedules, workers, health, audit,
    login,
)  # fmt: skip
SECTIONS: tuple[Section, ...] = tuple(page.section for page in _PAGES)
