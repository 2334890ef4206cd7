"""`notifyq mcp`, called by the client of the library over stdio."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from cli.programs import Notifyq, Running, environment
from support.database import Connection, let_fail

READING = {"queues", "search", "show", "dead_groups", "doctor"}
WRITING = {"retry_dead", "pause_queue", "resume_queue"}


@asynccontextmanager
async def serving(dsn: str, *args: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "notifyq", "mcp", *args],
        env=environment(NOTIFYQ_DSN=dsn),
    )
    async with Client(stdio_client(server)) as client:
        yield client


async def described(client: Client) -> dict[str, Any]:
    return {it.name: it for it in dict(await client.list_tools())["tools"]}


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


async def test_it_reads(database: str, connection: Connection) -> None:
    [dead] = await let_fail(connection, details="no card 4711")
    await connection.execute("select messages.publish('default', '{\"n\": 1.50}')")
    async with serving(database) as client:
        listed = await described(client)
        assert listed.keys() == READING
        assert all(it.annotations.read_only_hint for it in listed.values())
        [queue] = (await call(client, "queues"))["queues"]
        assert (queue["queue"], queue["waiting"], queue["dead"]) == ("default", 1, 1)
        found = await call(client, "search", state="dead", error="card")
        assert [it["id"] for it in found["messages"]] == [dead]
        assert found["is_complete"] is True
        found = await call(client, "search", payload="n > 1", limit=1)
        assert found["messages"][0]["message"] == '{"n": 1.50}'
        shown = await call(client, "show", message_id=dead)
        assert (shown["status"], shown["details"]) == ("failed", "no card 4711")
        assert [it["details"] for it in shown["history"]] == ["no card 4711"]
        [group] = (await call(client, "dead_groups"))["groups"]
        assert (group["fingerprint"], group["last_id"]) == ("no card <n>", dead)
        [finding] = (await call(client, "doctor", only=["install"]))["findings"]
        assert (finding["check"], finding["level"]) == ("install", "ok")
        assert "retry_dead" in await refused(client, "retry_dead", ids=[dead])


async def test_what_cannot_be_answered_is_an_error_with_its_reason(database: str) -> None:
    async with serving(database) as client:
        assert (await refused(client, "show", message_id=17)).endswith(
            "there is no message 17, neither live nor archived"
        )
        assert "no check 'x': there are " in await refused(client, "doctor", only=["x"])
        assert "NAME = VALUE" in await refused(client, "search", payload="n ? 1")
        assert "less than or equal to 200" in await refused(client, "search", limit=10_000)
        assert (await call(client, "search"))["messages"] == []


@pytest.mark.parametrize("option", [["--mask", "card"], ["--hide-payloads"]])
async def test_values_are_hidden_everywhere(
    database: str, connection: Connection, option: list[str]
) -> None:
    await connection.execute(
        "select messages.publish('default', '{\"card\": \"4711-12\"}', headers => "
        '\'{"card": "4711-12"}\')'
    )
    [claimed] = await connection.fetch("select * from messages.claim(array['default'])")
    await connection.execute(
        "select messages.finish($1, $2, 'failed', 'no card 4711-12')",
        claimed["id"],
        claimed["lock_token"],
    )
    async with serving(database, *option) as client:
        answers = [
            await call(client, "search"),
            await call(client, "show", message_id=claimed["id"]),
            await call(client, "dead_groups"),
        ]
        assert "hidden" in await refused(client, "search", error="4711")
        assert "hidden" in await refused(client, "search", payload="card = '4711-12'")
    text = json.dumps(answers, ensure_ascii=False)
    assert "4711" not in text
    assert text.count("•••") >= 5


async def test_with_write_it_changes_and_notes_it(database: str, connection: Connection) -> None:
    dead = await let_fail(connection, 2)
    async with serving(database, "--write") as client:
        listed = await described(client)
        assert listed.keys() == READING | WRITING
        retried = await call(client, "retry_dead", ids=[*dead, 999])
        assert retried["published"] == 2
        assert (await call(client, "retry_dead", ids=dead))["published"] == 0
        assert await call(client, "pause_queue", queue="default") == {"changed": True}
        assert await call(client, "resume_queue", queue="default") == {"changed": True}
        assert "no queue" in await refused(client, "pause_queue", queue="absent")
    rows = await connection.fetch(
        "select action, subject, origin, details::text from messages.audit_list()"
    )
    actions = [(row["action"], row["subject"]) for row in reversed(rows)]
    first, second = dead
    assert actions == [
        ("dead.retry", f"{first}, {second}, 999"),
        ("dead.retry", f"{first}, {second}"),
        ("queue.pause", "default"),
        ("queue.resume", "default"),
    ]
    assert all(row["origin"].startswith("mcp on ") for row in rows)


async def test_it_has_the_rights_of_its_role(database: str, connection: Connection) -> None:
    [dead] = await let_fail(connection)
    await connection.execute("create role agent login password 'x' in role notifyq_reader")
    try:
        dsn = database.replace(database.partition("//")[2].partition("@")[0], "agent:x")
        async with serving(dsn, "--write") as client:
            assert (await call(client, "show", message_id=dead))["id"] == dead
            assert "permission denied" in await refused(client, "retry_dead", ids=[dead])
            assert (await call(client, "queues"))["queues"][0]["dead"] == 1
    finally:
        await connection.execute("drop role agent")


def test_it_ends_with_its_input_and_by_a_signal(database: str) -> None:
    with Running(database, "mcp") as running:
        result = running.end()
        assert (result.code, result.out) == (0, "")
    ours, theirs = os.pipe()
    with Running(database, "mcp", stdin=ours) as running, os.fdopen(theirs, "wb") as stdin:
        stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        stdin.flush()
        assert '"id":1' in running.line().replace(" ", "")
        assert running.stop(signal.SIGTERM).code == -signal.SIGTERM


def test_a_blank_mask_is_refused(notifyq: Notifyq) -> None:
    assert "--mask is empty" in notifyq.refused("mcp", "--mask", "  ", code=2)
