"""What packages send besides: streams, relays, brokers and their presence."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from upgrade.packages import LOCK, NO_KEYS, NO_LIMITS

if TYPE_CHECKING:
    from upgrade.packages import Package

_NO_BOUNDS = (None, None, None, None)


async def use_streams(package: Package) -> None:
    assert await package.value("CREATE_STREAM", "s", None, None, True, LOCK, *_NO_BOUNDS)
    await package.fetch("ALTER_STREAM", "s", None, None, LOCK, *_NO_BOUNDS)
    assert await package.value("PAUSE_STREAM", "s")
    assert await package.value("RESUME_STREAM", "s")
    assert await package.value("SUBSCRIBE", "s", "mine", None)
    await _recover(package)
    seen = await package.value("POSITION")
    await package.value("SUPPRESS_STREAM", "s")
    assert await package.fetch("UNSUPPRESS_STREAMS", ["s"])
    await package.fetch("NOTIFY_STREAMS", ["s"])
    ids = await _publish(package, ["1", "2", "3"])
    assert await package.value("TICK", "s")
    assert [row["id"] for row in await package.fetch("EVENTS_SINCE", seen, "s")] == ids
    await _settle(package, ids)
    [stream] = await package.fetch("STREAM_INFO", "s")
    assert stream["stream"] == "s"
    [subscription] = await package.fetch("SUBSCRIPTION_INFO", "s", "mine")
    assert subscription["subscriber"] == "mine"
    assert await package.value("DEAD_COUNT", "s", "mine") == 2
    await package.value("SEEK", "s", "mine", "now")
    assert await package.value("FORWARD", "s", "on", "old", None, None)
    assert [row["queue"] for row in await package.fetch("FORWARDS", "s")] == ["old"]
    assert await package.value("UNFORWARD", "s", "on", False)
    assert await package.value("UNSUBSCRIBE", "s", "mine")
    await package.value("DROP_STREAM", "s", True)


async def _publish(package: Package, texts: list[str]) -> list[int]:
    options = (0, None, None, None, "{}", None)
    rows = await package.fetch("PUBLISH_MANY", "s", texts, *options, *NO_KEYS[1:])
    return [id_ for row in rows for id_ in row[0]]


async def _recover(package: Package) -> None:
    await _publish(package, ["0"])
    batch = await package.value("NEXT_BATCH", "s", "mine", 3, None, None)
    assert await package.value("RECOVER_BATCH", "s", "mine", 5, None, False) == 1
    assert await package.value("NEXT_RETRY", "s", "mine") is not None
    assert not await package.value("RELEASE_BATCH", batch)
    [again] = await package.fetch("NEXT_EVENTS", "s", "mine", 3, None, None)
    assert again["message"] == "0"
    assert await package.value("RELEASE_BATCH", again["batch"])
    assert await package.value("FINISH_BATCH", again["batch"])
    assert await package.value("PAYLOAD_SCHEMA", "s") is None
    assert await package.fetch("LAKES") == []


async def _settle(package: Package, ids: list[int]) -> None:
    asked = ("s", "mine", 3, None, None)
    found = await package.fetch("NEXT_EVENTS", *asked)
    assert [row["id"] for row in found] == ids
    batch = found[0]["batch"]
    assert await package.value("NEXT_BATCH", *asked) == batch
    await package.fetch("HOLD_EVENTS", batch)
    assert [row["id"] for row in await package.fetch("FETCH_EVENTS")] == ids
    await package.fetch("CLOSE_EVENTS")
    delay = timedelta(hours=1)
    assert await package.value("RETRY_EVENT", batch, ids[0], delay, "later")
    assert await package.fetch("RETRY_EVENTS", batch, ids[:1], [delay], ["later"])
    assert await package.value("FAIL_EVENT", batch, ids[1], "never")
    assert await package.fetch("FAIL_EVENTS", batch, ids[2:], ["never"])
    assert await package.value("FINISH_BATCH", batch)


async def use_relay(package: Package) -> None:
    source, target = await package.value("RELAY_SOURCE"), await package.value("RELAY_TARGET")
    policy = (LOCK, 2, timedelta(0), timedelta(0), "auto", timedelta(days=3), 1_000_000)
    assert await package.value("CREATE_QUEUE", "relayed", *policy, *NO_LIMITS)
    columns: list[list[Any]] = [["1 1"], ["relayed"], ["7"], [0], ["t"], ["{}"]]
    columns += [[None] for _ in range(4)]
    for known in (0, 1):
        [received] = await package.fetch("RECEIVE_MANY", "elsewhere", *columns, [], LOCK)
        assert (len(received["ids"]), received["known"]) == (1, known)
    [row] = await package.fetch("RELAY_CLAIM", ["relayed"], 10, LOCK, "w", None, True)
    assert row["messages"] == ["7"]
    endings = (row["ids"], row["tokens"], row["created"], ["success"], [None], [None])
    done = await package.fetch("RELAY_FINISH", target, source, "1 1", *endings)
    assert [one[0] for one in done] == row["ids"]
    marks = await package.fetch("RELAY_MARKS", target, source, LOCK)
    assert [mark[0] for mark in marks] == ["1 1"]
    assert await package.value("RELAY_FORGET", target) == 1
    await package.value("DROP_QUEUE", "relayed", True)


async def use_broker(package: Package) -> None:
    assert await package.fetch("BROKER_OF")
    await package.fetch("WANT_BROKER")
    await package.fetch("RUN_BROKER")
    assert await package.fetch("BROKER_STATUS")
    assert await package.value("STOP_BROKER", timedelta(0)) is False
    # Before, it would be this session that is stopped.
    assert await package.value("LOCK_BROKER")


async def use_steps(package: Package, keys: list[tuple[int, int]]) -> None:
    """Record, sleep, wait and report with four locked messages."""
    first, second, third, fourth = keys
    await package.fetch("RECORDED_STEPS", *first)
    for name in ("RECORD_STEP", "RECORD_STEP_IN"):
        [row] = await package.fetch(
            name, *first, name, "1", *([False] if name == "RECORD_STEP" else [None])
        )
        assert row["stored"] == "1"
    assert await package.value("REPORT_PROGRESS", *first, 0.5, "half")
    assert await package.value("EMIT", *first, '"chunk"') == 1
    [row] = await package.fetch("OUTPUT", first[0], 0)
    assert row["chunk"] == '"chunk"'
    assert len(await package.fetch("STEPS", first[0])) == 2
    assert not await package.value("SLEEP", *second, "nap", None, timedelta(hours=1))
    [row] = await package.fetch("WAIT_FOR_SIGNAL", *third, "wait", ["go"], None)
    assert row["state"] == "parked"
    [row] = await package.fetch("WAIT_FOR_ENDS", *fourth, "end", [first[0]], None)
    assert row["state"] == "parked"
    assert len(await package.fetch("PARKED", None, 10)) == 3
    assert await package.value("SIGNAL", "go", "null", None) == 1


async def use_presence(package: Package) -> None:
    await package.fetch(
        "WORKER_HEARTBEAT", "w", ["old"], [], 10, 1, False, "host", 1, "0.1.0", None
    )
    await package.fetch("REMOVE_WORKER", "w")
