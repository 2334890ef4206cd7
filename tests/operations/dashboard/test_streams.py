"""The pages of streams, schedules and workers, and what is done there."""

from __future__ import annotations

from operations.dashboard.conftest import Browser
from support.database import Connection, expire, publish, rows, value

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>"


async def test_streams_show_the_lag_of_subscribers(reader: Browser, connection: Connection) -> None:
    assert "There are no streams" in await reader.text("/streams")
    await value(connection, "create_stream", name="orders")
    await value(connection, "subscribe", stream="orders", subscriber="warehouse")
    for number in range(3):
        await value(connection, "publish", queue="orders", message=number)
    page = await reader.text("/streams")
    assert 'data-label="Pending">3</td>' in page
    assert "Open batches" not in page
    batch = await connection.fetchval(
        "select messages.next_batch('orders', 'warehouse', 10, 'host-1')"
    )
    page = await reader.text("/streams")
    assert f'<th scope="row">{batch}</th>' in page
    assert "host-1" in page
    assert "Move" not in page


async def test_the_overview_counts_subscribers_that_are_behind(
    reader: Browser, connection: Connection
) -> None:
    await value(connection, "create_stream", name="orders")
    for subscriber in ("quick", "slow"):
        await value(connection, "subscribe", stream="orders", subscriber=subscriber)
    await value(connection, "publish", queue="orders", message=1)
    batch = await connection.fetchval("select messages.next_batch('orders', 'quick', 10, 'host-1')")
    await value(connection, "finish_batch", batch=batch)
    await connection.execute(
        "update messages.event set created_at = created_at - interval '5 minutes'"
    )
    assert ">1 of 2<" in await reader.text("/")


async def test_moving_a_subscriber_is_confirmed_first(
    writer: Browser, connection: Connection
) -> None:
    await value(connection, "create_stream", name="orders")
    await value(connection, "subscribe", stream="orders", subscriber="w")
    await value(connection, "publish", queue="orders", message=1)
    fields = {"stream": "orders", "subscriber": "w", "position": "now", "back": "/streams"}
    asked = await writer.send("/streams/seek", **fields)
    assert "Move w of orders to now?" in asked.text
    assert (await rows(connection, "subscription_info"))[0]["pending"] == 1
    page = await writer.act("/streams/seek", confirmed="yes", **fields)
    assert "w of orders continues at now." in page
    assert (await rows(connection, "subscription_info"))[0]["pending"] == 0
    page = await writer.act(
        "/streams/seek", **{**fields, "position": "nowhere", "confirmed": "yes"}
    )
    assert 'role="alert"' in page
    audit = await connection.fetch("select action, subject from messages.audit")
    assert [tuple(row) for row in audit] == [("stream.seek", "orders w")]


async def test_a_stream_is_paused_and_resumed(writer: Browser, connection: Connection) -> None:
    await value(connection, "create_stream", name="orders")
    await writer.act("/streams/pause", name="orders", back="/streams")
    assert (await rows(connection, "stream_info"))[0]["paused"]
    assert "Resumed orders." in await writer.act("/streams/resume", name="orders", back="/streams")
    assert not (await rows(connection, "stream_info"))[0]["paused"]


async def test_a_queue_without_a_worker_is_marked(reader: Browser, connection: Connection) -> None:
    await connection.execute("select messages.schedule('nightly', '@daily', 'default')")
    await connection.execute("select messages.run_schedule('nightly')")
    assert "no worker" not in await reader.text("/queue?name=default")
    await connection.execute("update messages.message set available_at = now() - interval '1 hour'")
    await connection.execute("select notifyq.worker_heartbeat('w')")
    for path in ("/schedules", "/queues", "/queue?name=default"):
        assert "no worker" in await reader.text(path)


async def test_schedules_run_now_and_are_disabled(
    reader: Browser, writer: Browser, connection: Connection
) -> None:
    assert "There are no schedules" in await reader.text("/schedules")
    await connection.execute("select messages.schedule('nightly', '@daily', 'default', '7')")
    page = await reader.text("/schedules")
    assert "@daily" in page
    assert "Run now" not in page
    page = await writer.act("/schedules/run", name="nightly", back="/schedules")
    id_ = await connection.fetchval("select id from messages.message")
    assert f"published message {id_}." in page
    assert f'href="/messages/{id_}"' in page
    page = await writer.act("/schedules/disable", name="nightly", back="/schedules")
    assert "Disabled nightly." in page
    assert not await connection.fetchval("select enabled from messages.schedule")
    page = await writer.act("/schedules/disable", name="nightly", back="/schedules")
    assert "was disabled already" in page
    assert "Enabled nightly." in await writer.act("/schedules/enable", name="nightly")
    page = await writer.act("/schedules/run", name="none", back="/schedules")
    assert "no schedule" in page
    assert await connection.fetchval("select count(*) from messages.audit") == 4


async def test_workers_show_their_state_and_locked_messages(
    reader: Browser, connection: Connection
) -> None:
    assert "No workers, and no messages" in await reader.text("/workers")
    here, gone = await publish(connection, 2)
    await value(
        connection, "notifyq.worker_heartbeat", worker="host-1", queues=["default"], running=1
    )
    await rows(connection, "claim", worker="host-1")
    await rows(connection, "claim", worker="host-2")
    await value(connection, "notifyq.worker_heartbeat", worker="host-2", queues=["default"])
    await connection.execute(
        "update notifyq.worker set seen_at = now() - interval '5 minutes', session_pid = 0 "
        "where name = 'host-2'"
    )
    await expire(connection, gone)
    page = await reader.text("/workers")
    assert page.index("host-2") < page.index("host-1")
    assert ">gone<" in page
    assert "1 expired" in page
    assert f'href="/messages/{here}"' in page


async def test_texts_of_these_pages_are_escaped(writer: Browser, connection: Connection) -> None:
    await value(connection, "create_stream", name=HOSTILE)
    await value(connection, "subscribe", stream=HOSTILE, subscriber=HOSTILE)
    await connection.execute(
        "select messages.schedule($1, '@daily', 'default', to_jsonb($1::text))", HOSTILE
    )
    await value(
        connection, "notifyq.worker_heartbeat", worker=HOSTILE, queues=[HOSTILE], host=HOSTILE
    )
    for path in ("/streams", "/schedules", "/workers"):
        page = await writer.text(path)
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "&lt;script&gt;alert" in page
    asked = await writer.send(
        "/streams/seek", stream=HOSTILE, subscriber=HOSTILE, position="now", back="/streams"
    )
    assert "<img" not in asked.text
