"""What readers of the archive do, and what they find."""

from __future__ import annotations

from support.database import Connection


async def position(connection: Connection) -> str:
    return str(await connection.fetchval("select messages.current_position()"))


async def dead_since(connection: Connection, seen: str) -> list[int]:
    rows = await connection.fetch("select id from messages.dead_since($1) order by id", seen)
    return [row["id"] for row in rows]


async def burn(connection: Connection, numbers: int) -> None:
    """Use up numbers of transactions."""
    await connection.execute(
        f"do $$ begin for i in 1..{numbers} loop "
        "perform pg_current_xact_id(); commit; end loop; end; $$"
    )
