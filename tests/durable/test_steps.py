"""Handlers with steps: what is recorded is done once, whatever ends a call."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import tenacity
from pydantic import BaseModel

from notifyq import (
    App,
    ConfigurationError,
    Event,
    MessageFailedError,
    StepClosedError,
    StepFailedError,
    StepKindError,
    StepNameError,
    StepNestedError,
    Steps,
    StepTransaction,
    StepValueError,
    Transaction,
    WaitError,
)
from support.database import Connection, until
from support.running import Events, working


class Receipt(BaseModel):
    number: int


class CrashError(Exception):
    """What ends an attempt."""


async def test_a_recorded_step_is_not_called_again(app: App, events: Events) -> None:
    calls: Counter[str] = Counter()

    async def charge(amount: int) -> Receipt:
        calls["charge"] += 1
        return Receipt(number=amount)

    def pack(*, box: str) -> str:
        calls["pack"] += 1
        return box

    @app.handler("q", max_attempts=5, backoff=0.01)
    async def handle(amount: int, steps: Steps) -> str:
        receipt = await steps.run("charge", charge, amount)
        assert isinstance(receipt, Receipt)
        if calls["crash"] < 2:
            calls["crash"] += 1
            raise CrashError
        return f"{receipt.number} in {await steps.run('pack', pack, box='small')}"

    await app.create_queues()
    handle_ = await app.publish("q", 7)
    async with working(app, events, maintenance=0.2):
        assert await handle_.result(20) == "7 in small"
    assert calls == {"charge": 1, "pack": 1, "crash": 2}


async def test_values_and_arguments_are_those_of_the_function(app: App, events: Events) -> None:
    class Call:
        async def __call__(self, tens: int) -> list[Receipt]:
            return [Receipt(number=10 * tens)]

    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("busy")
        return len(tries)

    async def slow() -> None:
        await asyncio.sleep(60)

    @app.handler("q")
    async def handle(_: int, steps: Steps) -> list[Any]:
        retry = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(5), wait=tenacity.wait_none()
        )
        found: list[Any] = [await steps.run("object", Call(), 3)]
        found.append(await steps.run("flaky", flaky, retry=retry))
        try:
            await steps.run("slow", slow, timeout=0.05, errors=(TimeoutError,))
        except StepFailedError as error:
            found.append(str(error).partition(" failed: ")[2].partition(":")[0])
        found += [await steps.run("loop", str, n, key=n) for n in range(2)]
        assert steps.done("loop", key=1)
        assert not steps.done("loop", key=2)
        return found

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events):
        assert await handle_.result(20) == [[{"number": 30}], 3, "TimeoutError", "0", "1"]


async def test_an_outcome_is_raised_in_every_attempt(app: App, events: Events) -> None:
    calls: Counter[str] = Counter()

    class DeclinedError(Exception):
        pass

    async def charge() -> None:
        calls["charge"] += 1
        raise DeclinedError("no money")

    @app.handler("q", max_attempts=3, backoff=0.01)
    async def handle(_: int, steps: Steps) -> str:
        try:
            await steps.run("charge", charge, errors=(DeclinedError,))
        except StepFailedError as error:
            calls[str(error).partition(" failed: ")[2]] += 1
        if calls["crash"] < 2:
            calls["crash"] += 1
            raise CrashError
        return "refunded"

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.2):
        assert await handle_.result(20) == "refunded"
    assert calls == {"charge": 1, "DeclinedError: no money": 3, "crash": 2}


async def test_a_transaction_has_its_effect_once(
    app: App, events: Events, connection: Connection
) -> None:
    await connection.execute("create table public.seat (taken_by text)")
    crashes: list[int] = []

    async def book(tx: Transaction, who: str) -> str:
        await tx.execute("insert into public.seat values ($1)", who)
        return who.upper()

    @app.handler("q", max_attempts=4, backoff=0.01)
    async def handle(_: int, steps: Steps) -> str:
        seat = await steps.transaction("book", book, "ann")
        async with steps.transaction("note") as tx:
            await tx.execute("insert into public.seat values ('note')")
        if len(crashes) < 2:
            crashes.append(1)
            raise CrashError
        return seat

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.2):
        assert await handle_.result(20) == "ANN"
    assert [row[0] for row in await connection.fetch("select * from public.seat")] == [
        "ann",
        "note",
    ]


async def test_an_error_in_a_transaction_leaves_neither_effect_nor_record(
    app: App, events: Events, connection: Connection
) -> None:
    await connection.execute("create table public.seat (taken_by text)")

    @app.handler("q")
    async def handle(_: int, steps: Steps) -> bool:
        async def take(step: StepTransaction[None]) -> None:
            async with step as tx:
                await tx.execute("insert into public.seat values ('ann')")
                raise CrashError("full")

        with pytest.raises(CrashError):
            await take(steps.transaction("book"))
        with pytest.raises(StepFailedError, match="CrashError: full"):
            await take(steps.transaction("train", errors=(CrashError,)))
        return steps.done("book")

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events):
        assert await handle_.result(20) is False
    assert await connection.fetchval("select count(*) from public.seat") == 0
    assert [(row["name"], row["state"]) for row in await steps_of(connection, handle_)] == [
        ("train", "failed")
    ]


async def steps_of(connection: Connection, message_id: int) -> list[Any]:
    return await connection.fetch("select * from messages.steps($1)", message_id)


async def test_a_sleep_holds_neither_worker_nor_attempt(
    app: App, events: Events, connection: Connection
) -> None:
    calls: list[int] = []

    @app.handler("q", max_attempts=2)
    async def handle(_: int, steps: Steps) -> int:
        calls.append(1)
        await steps.sleep("short", timedelta(seconds=0.2))
        await steps.sleep("shorter", 0.1)
        return len(calls)

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.1) as worker:
        assert await handle_.result(20) == 3
        assert worker.counts["parked"] == 2
    row = await connection.fetchrow("select attempts from messages.message_archive")
    assert row is not None
    assert row["attempts"] == 1


@pytest.mark.parametrize("first", ["signal", "wait"])
async def test_a_signal_wakes_a_handler_whichever_comes_first(
    app: App, events: Events, connection: Connection, first: str
) -> None:
    @app.handler("q")
    async def handle(order: int, steps: Steps) -> Any:
        return await steps.wait_for("approval", signal=f"approved:{order}", timeout=60)

    await app.create_queues()
    if first == "signal":
        assert await app.signal("approved:1", {"by": "ann"}) == 0
    handle_ = await app.publish("q", 1)
    async with working(app, events):
        if first == "wait":
            await until_parked(connection)
            assert await app.signal("approved:1", {"by": "ann"}) == 1
        assert await handle_.result(20) == {"by": "ann"}
    assert await app.signal("approved:1", {"by": "bob"}) == 0


async def test_a_signal_to_one_message_and_the_first_of_several(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("q")
    async def handle(_: int, steps: Steps) -> Any:
        name, payload = await steps.wait_for("answer", signal=["yes", "no"])
        return [name, payload, await steps.wait_for("second", signal="no")]

    await app.create_queues()
    one, other = await app.publish("q", 1), await app.publish("q", 2)
    # Maintenance finds a signal that crosses with the wait for it.
    async with working(app, events, maintenance=0.1):
        await until_parked(connection, 2)
        assert await one.signal("no", 1) == 1
        await one.signal("no", 2)  # which comes before the second wait, or ends it
        assert await one.result(20) == ["no", 1, 2]
        assert await other.signal("yes") == 1
        await other.signal("no", 3)
        assert await other.result(20) == ["yes", None, 3]


async def test_a_wait_times_out_in_each_later_call_too(app: App, events: Events) -> None:
    raised: list[str] = []

    @app.handler("q", max_attempts=2, backoff=0.01)
    async def handle(_: int, steps: Steps) -> str:
        try:
            await steps.wait_for("approval", signal="never", timeout=0.1)
        except TimeoutError as error:
            raised.append(str(error))
        if len(raised) < 2:
            raise CrashError
        return "gave up"

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.1):
        assert await handle_.result(20) == "gave up"
    assert "no signal came in time for 'approval'" in raised[0]


async def test_children_are_published_once_and_their_results_are_read(
    app: App, events: Events, connection: Connection
) -> None:
    crashes: list[int] = []

    @app.handler("child")
    async def child(number: int) -> Receipt:
        if number == 13:
            raise ValueError("unlucky")
        return Receipt(number=number)

    @app.handler("q", max_attempts=3, backoff=0.01)
    async def handle(_: int, steps: Steps) -> Any:
        one = await steps.publish("one", child, 1)
        many = [await steps.publish("many", child, n, key=n) for n in (2, 3)]
        bad = await steps.publish("bad", "child", 13, max_attempts=1)
        if not crashes:
            crashes.append(1)
            raise CrashError
        found = [await steps.result("first", one), *await steps.results("others", many)]
        assert all(isinstance(it, Receipt) for it in found)
        with pytest.raises(MessageFailedError, match="unlucky"):
            await steps.result("unlucky", bad)
        return [it.number for it in found]

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.2):
        assert await handle_.result(20) == [1, 2, 3]
    count = "select count(*) from messages.message_archive where queue = 'child'"
    assert await connection.fetchval(count) == 4


async def test_steps_run_side_by_side_and_parking_waits_for_them(app: App, events: Events) -> None:
    calls: Counter[str] = Counter()
    together = asyncio.Barrier(3)

    async def work(name: str, steps: Steps) -> str:
        calls[name] += 1
        await together.wait()
        await until(lambda: steps.record._waiting is not None, "the pause waits for this step")
        for _ in range(10):  # so long that it would have parked the message
            await app.database.fetch("select 1")
        return name

    @app.handler("q")
    async def handle(_: int, steps: Steps) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(steps.run(name, work, name, steps)) for name in "abc"]
            group.create_task(steps.sleep("pause", 0.2))
        return [task.result() for task in tasks]

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.1):
        assert await handle_.result(20) == ["a", "b", "c"]
    assert calls == {"a": 1, "b": 1, "c": 1}


async def test_except_exception_does_not_catch_parking(app: App, events: Events) -> None:
    closed: list[int] = []

    @app.handler("q")
    async def handle(_: int, steps: Steps) -> str:
        try:
            await steps.sleep("pause", 0.1)
        except Exception:  # noqa: BLE001
            return "caught"
        except BaseException:  # noqa: BLE001
            pass
        finally:
            closed.append(1)
        return "woken"

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.1):
        assert await handle_.result(20) == "woken"
    assert len(closed) == 2


async def test_a_value_that_is_not_json_is_an_error_and_is_not_recorded(
    app: App, events: Events, connection: Connection
) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    values = [object(), cycle, "a\0b", float("nan"), "\ud800"]

    @app.handler("q", max_attempts=1)
    async def handle(_: int, steps: Steps) -> str:
        def give(number: int) -> Any:
            return values[number]

        async def give_in(tx: Transaction, number: int) -> Any:
            await tx.execute("insert into effect values ($1)", number)
            return values[number]

        for number in range(len(values)):
            with pytest.raises(StepValueError, match=f"step 'plain#{number}'"):
                await steps.run("plain", give, number, key=number)
            with pytest.raises(StepValueError, match=f"step 'inside#{number}'"):
                await steps.transaction("inside", give_in, number, key=number)
        return await steps.run("good", str)

    await connection.execute("create table effect (number integer)")
    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events):
        assert await handle_.result(20) == ""
    assert [step.name for step in await app.archive.steps(handle_)] == ["good"]
    assert await connection.fetch("select from effect") == []


async def test_wrong_use_is_an_error_with_its_own_class(app: App, events: Events) -> None:
    kept: list[Steps] = []

    @app.handler("q", max_attempts=1)
    async def handle(_: int, steps: Steps) -> None:
        kept.append(steps)

        async def nested() -> None:
            await steps.run("inner", str)

        with pytest.raises(StepNestedError, match="inside step 'outer'"):
            await steps.run("outer", nested)
        await steps.run("name", str)
        with pytest.raises(StepNameError, match="'name' is used twice"):
            await steps.run("name", str)
        for name in ("", "é" * 101, "a\0b"):
            with pytest.raises(StepNameError, match="1 to 200 bytes"):
                await steps.run(name, str)
        with pytest.raises(StepNameError, match="1 to 200 bytes"):
            await steps.sleep("x" * 199, 1, key=10)
        with pytest.raises(StepNameError, match="no function"):
            await steps.transaction("empty")
        waits = [steps.wait_for(name, signal=name) for name in ("one", "two")]
        found = await asyncio.gather(*waits, return_exceptions=True)
        assert isinstance(found[1], WaitError)

    await app.create_queues()
    await app.publish("q", 1)
    async with working(app, events) as worker:
        await until(lambda: worker.counts["parked"], "a parked message")
    with pytest.raises(StepClosedError, match="after its handler returned"):
        await kept[0].run("late", str)


async def test_a_name_has_one_kind(app: App, events: Events) -> None:
    @app.handler("q", max_attempts=2, backoff=0.01)
    async def handle(_: int, steps: Steps) -> str:
        if steps.done("work"):
            with pytest.raises(StepKindError, match="is recorded as a sleep"):
                await steps.run("pause", str)
            return "refused"
        await steps.sleep("pause", 0)
        await steps.run("work", str)
        raise CrashError

    @app.handler("other", max_attempts=1)
    async def other(_: int, steps: Steps) -> str:
        return await steps.run("x" * 201, str)

    await app.create_queues()
    first, second = await app.publish("q", 1), await app.publish("other", 1)
    async with working(app, events, maintenance=0.1):
        assert await first.result(20) == "refused"
        with pytest.raises(MessageFailedError, match="1 to 200 bytes, not 201"):
            await second.result(20)


async def until_parked(connection: Connection, quantity: int = 1) -> None:
    async def are_parked() -> bool:
        found = await connection.fetchval("select count(*) from messages.parked()")
        return bool(found == quantity)

    await until(are_parked, f"{quantity} parked messages")


async def test_signatures_that_cannot_have_steps(app: App) -> None:
    def sync(_: int, steps: Steps) -> None:
        del steps

    async def batch(_: list[int], steps: Steps) -> None:
        del steps

    async def event(_: Event, steps: Steps) -> None:
        del steps

    with pytest.raises(ConfigurationError, match="it must be async"):
        app.handler("q")(sync)
    for register in (
        lambda: app.handler("q", batch=10)(batch),
        lambda: app.handler("q", transactional=True)(batch),
        lambda: app.subscriber("stream", "name")(event),
    ):
        with pytest.raises(ConfigurationError, match="only a handler of one message"):
            register()


async def test_the_idempotency_key_survives_retries_of_the_dead(app: App, events: Events) -> None:
    keys: list[str] = []

    @app.handler("q", max_attempts=2, backoff=0.01)
    async def handle(_: int, steps: Steps) -> int:
        keys.append(steps.idempotency_key("charge"))
        first = await steps.run("first", len, keys)
        if len(keys) < 4:
            raise CrashError
        return first

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.2):
        with pytest.raises(MessageFailedError):
            await handle_.result(20)
        [again] = await app.archive.dead_retry([handle_])
        # The recorded step went along.
        assert await app.result(again, timeout=20) == 1
    assert len(keys) == 4
    assert len(set(keys)) == 1


async def test_a_step_whose_row_is_locked_holds_up_no_other(
    app: App, events: Events, connection: Connection
) -> None:
    begun = {name: asyncio.Event() for name in ("locked", "free")}
    go_on = asyncio.Event()

    async def work(name: str) -> str:
        begun[name].set()
        await go_on.wait()
        return name

    @app.handler("q")
    async def handle(name: str, steps: Steps) -> str:
        return await steps.run("work", work, name)

    await app.create_queues()
    locked, free = [await app.publish("q", name) for name in begun]
    async with working(app, events):
        for event in begun.values():
            await event.wait()
        async with connection.transaction():
            await connection.execute(
                "select from messages.message where id = $1 for update", int(locked)
            )
            go_on.set()
            assert await free.result(20) == "free"
            assert await app.archive.steps(int(locked)) == []
        assert await locked.result(20) == "locked"


@pytest.mark.parametrize(("attempts", "warns"), [(None, True), (1, True), (2, False)])
async def test_a_worker_warns_of_steps_with_one_attempt(
    app: App, caplog: pytest.LogCaptureFixture, attempts: int | None, *, warns: bool
) -> None:
    @app.handler("q", max_attempts=attempts)
    async def handle(_: int, steps: Steps) -> None:
        del steps

    async with working(app):
        pass
    assert ("with max_attempts 1" in caplog.text) is warns
