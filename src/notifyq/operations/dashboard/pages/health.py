"""Health: findings of the checks, sessions in the way, tables and pg_cron."""

import asyncio
import re

from starlette.responses import Response

from notifyq.operations import monitor
from notifyq.operations.dashboard.checks import checked, state
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.operations.doctor import Level
from notifyq.operations.masks import redacted_statement
from notifyq.operations.monitor import Health

section = Section("health", "Health", key="h")

_OWN = re.compile("notifyq(_[a-z0-9_]+)? (dashboard|dashboard notification|doctor)")
_KINDS = {Level.FAIL: "bad", Level.WARN: "warn", Level.SKIPPED: "quiet", Level.OK: "good"}
"""The badges of levels, the worst first."""


@section.page("/health", "health")
async def health(view: View) -> Response:
    """Findings, sessions, tables, notifications and pg_cron."""
    database, cache, part = view.database, view.dashboard.cache, view.parts.read
    figures, holders, activity, cron, found = await asyncio.gather(
        part("figures", cache.get("health", 5, lambda: monitor.health(database)), None),
        part("holders", cache.get("holders", 2, lambda: monitor.holders(database, most=20)), []),
        part("activity", cache.get("activity", 2, lambda: monitor.activity(database, most=20)), []),
        part("cron", cache.get("cron", 5, lambda: monitor.cron_entries(database)), []),
        checked(view.dashboard),
    )
    view.parts.check()
    order = list(_KINDS)
    findings = sorted(found.findings, key=lambda it: order.index(it[1].level)) if found else []
    return view.render(
        "health.html",
        title="Health",
        health=state(found),
        checked_at=found and found.at,
        is_complete=found is None or found.is_complete,
        findings=findings,
        urgent=[it for it in findings if it[1].level in {Level.FAIL, Level.WARN}],
        kinds=_KINDS,
        figures=figures,
        tables=_tables(figures) if figures else [],
        # The sessions of this page have ended when it is shown.
        holders=[it for it in holders if not _OWN.fullmatch(it.application or "")],
        activity=[it for it in activity if not _OWN.fullmatch(it.application or "")],
        cron=cron,
        statement=lambda it: redacted_statement(it, view.masks),
    )


def _tables(figures: Health) -> list[dict[str, object]]:
    """The numbers of each table as a row, the largest table first."""
    names = ("table_bytes", "index_bytes", "live_rows", "dead_rows", "vacuum_age", "bloat")
    columns = {name: figures.by_subject(name) for name in names}
    tables = sorted(columns["table_bytes"], key=lambda it: -columns["table_bytes"][it])
    return [
        {"name": table, **{name: columns[name].get(table) for name in names}} for table in tables
    ]
