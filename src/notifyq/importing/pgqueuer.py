"""PgQueuer: rows of table pgqueuer that are `queued`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from notifyq.importing.table import Item, Table, name_of_table, short
from notifyq.models.payload import check_json, encode

if TYPE_CHECKING:
    from notifyq.database.pool import Connection


async def tables(connection: Connection, name: str | None) -> list[Table]:
    """Find the table, by its usual name or another."""
    wanted = name or "pgqueuer"
    found = await connection.fetchval("select to_regclass($1)::text", wanted)
    return [
        Table(
            system="pgqueuer",
            name=name_of_table(wanted, found, "pgqueuer"),
            id="id",
            payload="payload",
            kind="bytea",
            queue="t.entrypoint",
            due="t.execute_after",
            waits="t.status = 'queued'",
            runs="t.status = 'picked'",
            begun="t.created",
            item=_item,
        )
    ]


def _item(row_id: int, place: str, columns: dict[str, Any], payload: bytes | None) -> Item:
    headers = columns.get("headers") or {}
    if not isinstance(headers, dict):
        headers = {"headers": headers}
    kept = short(columns, "id", "attempts", "created")
    return Item(
        id=row_id,
        place=place,
        queue=columns["entrypoint"],
        message=_message(payload),
        type=columns["entrypoint"],
        priority=columns["priority"],
        available_at=columns.get("execute_after"),
        headers={**headers, "pgqueuer": kept},
        dedup_key=columns.get("dedupe_key"),
    )


def _message(payload: bytes | None) -> str:
    """JSON as it is; what is something else has its bytes in an object."""
    if payload is None:
        return "null"
    try:
        text = payload.decode()
        check_json(text)
    except ValueError:
        return encode({"base64": base64.b64encode(payload).decode()})
    return text
