"""The pages of queues, and what is done there."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from typing import Any

from notifyq.operations.dashboard.policy import FIELDS
from notifyq.queues.policy import Policy
from operations.dashboard.conftest import Browser
from support.database import Connect, Connection


async def test_pausing_and_resuming_a_queue_is_audited(
    writer: Browser, connection: Connection
) -> None:
    page = await writer.act("/queues/pause", name="default", back="/queues")
    assert "Paused default." in page
    assert await connection.fetchval("select paused from messages.queue")
    # Shown once.
    assert "Paused default." not in await writer.text("/queues")
    assert "Resumed default." in await writer.act("/queues/resume", name="default", back="/queues")
    assert not await connection.fetchval("select paused from messages.queue")
    rows = await connection.fetch("select * from messages.audit order by id")
    assert [(row["action"], row["subject"], row["actor"]) for row in rows] == [
        ("queue.pause", "default", "anonymous"),
        ("queue.resume", "default", "anonymous"),
    ]
    page = await writer.text("/audit")
    assert page.index("<code>queue.resume") < page.index("<code>queue.pause")


async def test_the_end_of_a_pause_is_shown(reader: Browser, connection: Connection) -> None:
    await connection.execute("select messages.pause_queue('default', '2999-01-31T12:00Z')")
    for path in ("/queues", "/queue?name=default"):
        page = await reader.text(path)
        assert "paused until <time" in page
        assert "2999-01-31 12:00:00" in page


async def test_a_refused_change_is_reported_and_not_audited(
    writer: Browser, connection: Connection
) -> None:
    page = await writer.act("/queues/pause", name="none", back="/queues")
    assert 'role="alert"' in page
    assert "none" in page
    assert not await connection.fetchval("select count(*) from messages.audit")


async def test_a_reader_sees_no_forms_and_is_refused(
    reader: Browser, connection: Connection
) -> None:
    assert "/queues/pause" not in await reader.text("/queues")
    answer = await reader.send("/queues/pause", name="default")
    assert answer.status_code == 403
    assert "--allow-writes" in answer.text
    assert not await connection.fetchval("select paused from messages.queue")


async def policy(writer: Browser, **changes: str) -> Any:
    """Send the form of the queue `mail` as it is, with some fields otherwise."""
    page = await writer.text("/queue?name=mail")
    found = dict(re.findall(r'<input id="f-\w+" name="(\w+)" value="([^"]*)"', page))
    ticked = dict.fromkeys(re.findall(r'name="(\w+)" value="yes" checked', page), "yes")
    return await writer.send("/queues/alter", name="mail", **{**found, **ticked, **changes})


async def test_only_changed_options_are_altered(writer: Browser, connection: Connection) -> None:
    await connection.execute("select messages.create_queue('mail', rate => 5, fair => true)")
    answer = await policy(
        writer,
        lock_duration="1h30m",
        rate="",
        capacity="100",
        overflow="drop_oldest",
        ordered="yes",
        fair="",
    )
    assert answer.status_code == 303
    row = await connection.fetchrow("select * from notifyq.queue_list('mail')")
    assert row is not None
    assert row["lock_duration"] == timedelta(minutes=90)
    assert (row["rate"], row["capacity"], row["overflow"]) == (None, 100, "drop_oldest")
    # A box that is not ticked is no.
    assert (row["ordered"], row["fair"]) == (True, False)
    details = await connection.fetchval("select details from messages.audit")
    assert details["lock_duration"] == ["1m", "1h30m"]
    assert details["rate"] == ["5", ""]
    assert "max_attempts" not in details


async def test_every_option_can_be_changed_and_reset(
    writer: Browser, connection: Connection
) -> None:
    assert {it.name for it in FIELDS} >= {it.name for it in dataclasses.fields(Policy)}
    await connection.execute("select messages.create_queue('mail')")
    schema = '{\r\n  "type": "object"\r\n}'  # with the ends of lines that browsers send
    for changes in ({"payload_schema": schema}, {"payload_type": "integer", "payload_schema": ""}):
        await policy(writer, retention_dead="90d", aging="10m", durable="", **changes)
        row = await connection.fetchrow("select * from notifyq.queue_list('mail')")
        assert row is not None
        assert (row["retention_dead"], row["durable"]) == (timedelta(days=90), False)
        assert row["aging"] == timedelta(minutes=10)
        assert row["payload_type"] == changes.get("payload_type")
        assert (row["payload_schema"] is None) == (not changes["payload_schema"])
    # Sent as it is shown, nothing changes.
    page = await writer.get((await policy(writer, payload_type="integer")).headers["location"])
    assert "Nothing was changed." in page.text
    await policy(writer, retention_dead="", aging="", payload_type="", durable="yes")
    row = await connection.fetchrow("select * from notifyq.queue_list('mail')")
    assert row is not None
    assert (row["retention_dead"], row["payload_type"], row["durable"]) == (None, None, True)
    assert row["aging"] is None


async def test_an_invalid_policy_keeps_the_input_and_shows_an_error(
    writer: Browser, connection: Connection
) -> None:
    await connection.execute("select messages.create_queue('mail')")
    before = await connection.fetchrow("select * from notifyq.queue_list('mail')")
    for changes, error in (
        ({"lock_duration": "soon"}, "is not a duration"),
        ({"max_attempts": "many"}, "is not a whole number"),
        ({"rate": "0"}, "leave it empty"),
        ({"max_attempts": ""}, "is not a whole number"),
        ({"payload_schema": "{"}, "is not JSON"),
        ({"payload_schema": "7"}, "is an object"),
        ({"payload_type": "nothing"}, "nothing"),
        # What only the database knows.
        ({"backoff": "2h", "backoff_max": "1h"}, "backoff"),
        ({"notify": "loud"}, "notify must be auto, always or off"),
    ):
        answer = await policy(writer, capacity="77", **changes)
        assert answer.status_code == 422
        assert 'role="alert"' in answer.text
        assert error in answer.text
        assert 'value="77"' in answer.text
        assert await connection.fetchrow("select * from notifyq.queue_list('mail')") == before
        assert not await connection.fetchval("select count(*) from messages.audit")


async def test_an_unknown_queue_is_not_found(reader: Browser) -> None:
    page = await reader.text("/queue?name=none", 404)
    assert "Not found" in page
    assert "/queues/alter" not in await reader.text("/queue?name=default")


async def test_the_overview_counts_finished_messages(
    reader: Browser, connection: Connection
) -> None:
    await connection.execute("""
      select messages.create_queue('mail');
      insert into messages.message_archive (
        id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts,
        status, queue, message, headers
      )
      select i, now() - interval '20 s', now() - interval '20 s', now() - interval '12 s',
        now() - interval '10 s', 1, 0, 1,
        (case when i <= 5 then 'failed' else 'success' end)::messages.message_status,
        case when i % 2 = 0 then 'mail' else 'default' end, '1', '{}'
      from generate_series(1, 100) as i;
      select messages.publish('mail', '1') from generate_series(1, 3);
    """)
    for chosen in ("15m", "1h", "6h", "24h", "7d"):
        page = await reader.text(f"/?range={chosen}")
        assert "100 messages finished, 5 of them dead" in page
        assert ">5 %<" in page
        assert "The highest 95th percentile of a step is 8 s" in page
        page = await reader.text(f"/?range={chosen}&queue=mail")
        assert "50 messages finished, 2 of them dead" in page


async def test_health_names_the_holder_of_a_snapshot(reader: Browser, connect: Connect) -> None:
    holder = await connect(server_settings={"application_name": "nightly export"})
    async with holder.transaction(isolation="repeatable_read"):
        await holder.execute("select 1 as the_query_of_the_export")
        page = await reader.text("/health")
        assert "nightly export" in page
        assert f"pg_terminate_backend({holder.get_server_pid()})" in page
        assert "the_query_of_the_export" in page
