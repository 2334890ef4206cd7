"""What readers of the archive do, and what they find."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.database import Connection


async def position(connection: Connection) -> str:
    return str(await connection.fetchval("select messages.current_position()"))


async def dead_since(connection: Connection, seen: str) -> list[int]:
    rows = await connection.fetch("select id from messages.dead_since($1) order by id", seen)
    return [row["id"] for row in rows]


async def kill(connection: Connection, quantity: int = 1) -> list[int]:
    """Publish messages into the default queue and let as many fail; return those that failed."""
    await connection.execute(
        "select messages.publish('default', to_jsonb(n)) from generate_series(1, $1) as n", quantity
    )
    rows = await connection.fetch(
        "select c.id, messages.finish(c.id, c.lock_token, 'failed') "
        "from messages.claim(array['default'], $1) as c",
        quantity,
    )
    return sorted(row["id"] for row in rows)


async def burn(connection: Connection, numbers: int) -> None:
    """Use up numbers of transactions."""
    await connection.execute(
        f"do $$ begin for i in 1..{numbers} loop "
        "perform pg_current_xact_id(); commit; end loop; end; $$"
    )
