"""Procedures for the broker to call, and a broker in a session of the test."""

from __future__ import annotations

from support.database import Connection, until

TAKE = "insert into app.seen (by, value) values ('{name}', messages.dequeue(null::text))"


async def prepare(connection: Connection, *streams: str) -> None:
    """Have a schema for procedures, a table for what they saw, and streams."""
    await connection.execute(
        "create schema app; create table app.seen "
        "(number bigint generated always as identity, by text, value text)"
    )
    for stream in streams:
        await connection.execute("select messages.create_stream($1)", stream)


async def declare(connection: Connection, name: str, body: str = "") -> None:
    """Make a procedure of this name that takes its event, and then does something else."""
    await connection.execute(
        f"create or replace procedure app.{name}() language plpgsql as "
        f"$body$ begin {TAKE.format(name=name)}; {body} end $body$"
    )


async def register(
    connection: Connection, name: str, body: str = "", *, stream: str = "s", start: str = "now"
) -> bool:
    """Make a procedure, and register it as a subscriber of its own name."""
    await declare(connection, name, body)
    registered = await connection.fetchval(
        "select messages.register($1, $2, $3, $4)", stream, name, f"app.{name}", start
    )
    return bool(registered)


async def send(connection: Connection, *values: object, stream: str = "s") -> list[int]:
    """Publish these values, each in a transaction of its own."""
    return [
        await connection.fetchval("select messages.publish($1, $2)", stream, each)
        for each in values
    ]


async def drain(connection: Connection) -> bool:
    """Be the broker until nothing is left to do; whether it was stopped."""
    [row] = await connection.fetch("call messages.run_broker(idle => '0')")
    return bool(row["stopped"])


async def seen(connection: Connection, name: str | None = None) -> list[str]:
    """What the procedures saw, in their order."""
    found = await connection.fetch(
        "select value from app.seen where by = $1 or $1 is null order by number", name
    )
    return [row["value"] for row in found]


async def until_seen(connection: Connection, *values: str, seconds: float = 10) -> None:
    async def are_seen() -> bool:
        return set(values) <= set(await seen(connection))

    await until(are_seen, f"{values} are seen", seconds)


async def is_running(connection: Connection) -> bool:
    return bool(await connection.fetchval("select running from messages.status_broker()"))
