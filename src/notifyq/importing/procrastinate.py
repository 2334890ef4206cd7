"""Procrastinate: rows of procrastinate_jobs that are `todo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from notifyq.importing.table import Item, Table, name_of_table, short

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

_FIND = """
select to_regclass($1)::text as jobs,
  (
    select format('%I.%I', n.nspname, replace(c.relname, 'jobs', 'events'))
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace
    where c.oid = to_regclass($1)
  ) as events
"""


async def tables(connection: Connection, name: str | None) -> list[Table]:
    """Find the table, by its usual name or another."""
    wanted = name or "procrastinate_jobs"
    [found] = await connection.fetch(_FIND, wanted)
    return [
        Table(
            system="procrastinate",
            name=name_of_table(wanted, found["jobs"], "procrastinate"),
            id="id",
            payload="args",
            kind="text",
            queue="t.queue_name",
            due="t.scheduled_at",
            waits="t.status = 'todo'",
            runs="t.status = 'doing'",
            # The row itself does not say.
            begun=f"(select min(e.at) from {found['events']} as e where e.job_id = t.id)",
            item=_item,
        )
    ]


def _item(row_id: int, place: str, columns: dict[str, Any], payload: str) -> Item:
    kept = short(columns, "id", "attempts", "lock", "queueing_lock")
    return Item(
        id=row_id,
        place=place,
        queue=columns["queue_name"],
        message=payload,
        type=columns["task_name"],
        priority=columns.get("priority", 0),
        available_at=columns["scheduled_at"],
        headers={"procrastinate": kept},
        dedup_key=columns["queueing_lock"],
        key=columns["lock"],
    )
