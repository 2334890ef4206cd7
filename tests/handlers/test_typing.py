"""What type checkers know of handlers. The check is that of mypy: it runs over this file.

An expected error is one that is ignored by its code: mypy complains about an ignore without one.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from notifyq import (
    App,
    BatchHandler,
    Event,
    Handle,
    HandlerOptions,
    Message,
    MessageHandler,
    Published,
    Reject,
)

app = App("postgresql://nowhere")
policy: HandlerOptions = {"max_attempts": 5, "timeout": 30}


class Order(BaseModel):
    number: int


class Rush(Order):
    hours: int


class Receipt(BaseModel):
    paid: bool


class Mailer: ...


@app.resource
async def mailer() -> AsyncIterator[Mailer]:
    yield Mailer()


@app.handler("orders", **policy)
async def bill(order: Order, message: Message, mailer: Mailer) -> Receipt:
    return Receipt(paid=True)


@app.handler("sync")
def bill_sync(order: Order, *, message: Message) -> Receipt:
    return Receipt(paid=True)


@app.handler("bare")
async def bare() -> int:
    return 1


@app.handler("message")
def only_message(message: Message) -> None:
    return None


@app.handler("anything")
async def anything(payload: Any) -> str:
    return ""


@app.handler("many", batch=100, linger=0.05)
async def many(orders: list[Order]) -> list[Receipt]:
    return [Receipt(paid=True) for _ in orders]


@app.cron("@daily", overlap="sometimes")  # type: ignore[arg-type]
async def daily() -> None: ...


@app.handler("many at once", batch=100)
def many_sync(orders: list[Order]) -> list[Receipt]:
    return []


@app.subscriber("stream", "one")
async def one_event(order: Order, event: Event) -> None: ...


@app.subscriber("stream", "batches", batch=10)
async def batch_of_events(orders: list[Order]) -> None: ...


@app.subscriber("stream", "whole")
async def whole_event(event: Event) -> None: ...


@app.handler("mixed", batch=100)
def mixed(orders: list[Order]) -> list[Receipt | Reject | None] | None:
    return None


async def checked() -> None:
    """Is never called."""
    handle = await bill.publish(Order(number=1), priority=1)
    assert_type(handle, Handle[Receipt])
    assert_type(await handle.result(timeout=10), Receipt)
    number: int = handle
    await bill.publish(Rush(number=number, hours=2))
    await bill.publish(1)  # type: ignore[call-overload]
    await bill.publish()  # type: ignore[call-overload]
    await bill.publish(Order(number=1), delay=1.5, dedup_key="1", on_duplicate="replace")
    await bill.publish(Order(number=1), prioritty=1)  # type: ignore[call-overload]
    await bill.publish(Order(number=1), delay="5s")  # type: ignore[call-overload]
    await bill.publish(Order(number=1), on_duplicate="debounc")  # type: ignore[call-overload]
    assert_type(await bill.publish_many([Order(number=1)]), list[Handle[Receipt]])
    await bill.publish_many([1])  # type: ignore[list-item]
    await bill.publish_many([Order(number=1)], key="k")  # type: ignore[call-overload]

    message = handle_message()
    assert_type(await bill(order=Order(number=1), message=message, mailer=Mailer()), Receipt)
    await bill(Order(number=1))  # type: ignore[call-arg]

    assert_type(await bill_sync.publish(Order(number=1)), Handle[Receipt])
    assert_type(bill_sync(Order(number=1), message=message), Receipt)
    await bill_sync.publish("x")  # type: ignore[arg-type]
    assert_type(await bare.publish(), Handle[int])
    assert_type(await only_message.publish({"any": "thing"}), Handle[None])
    assert_type(await anything.publish({"any": "thing"}), Handle[str])

    assert_type(await many.publish(Order(number=1)), Handle[Receipt])
    assert_type(await many.publish_many([Order(number=1)]), list[Handle[Receipt]])
    await many.publish([Order(number=1)])  # type: ignore[call-overload]
    assert_type(await many([Order(number=1)]), list[Receipt])
    assert_type(await mixed.publish(Order(number=1)), Handle[Any])
    assert_type(await many_sync.publish(Order(number=1)), Handle[Receipt])
    assert_type(await many_sync.publish_many([Order(number=1)]), list[Handle[Receipt]])

    assert_type(await app.result(1, Receipt), Receipt)
    assert_type(await app.result(1, list[int], timeout=1), list[int])
    assert_type(await app.result(1), Any)
    await app.result(1, int | None)
    text: str = await app.result(1, Receipt)  # type: ignore[arg-type]
    await app.publish(text, 1, prio=1)  # type: ignore[call-arg]
    await app.publish_many(text, [1], key="k")  # type: ignore[arg-type]
    assert_type(await (await app.publish("orders", 1)).result(), Any)


async def checked_of_an_app() -> None:
    """Is never called."""
    group = await app.publish_group(
        "orders", [1], callback=("done", None), on_failure="hold", priority=1, key=str
    )
    assert_type(group.messages, list[Handle[Any]])
    await app.publish_group("orders", [1], callback=("done", None), prio=1)  # type: ignore[call-arg]
    await app.publish_group(
        "orders",
        [1],
        callback=("done", None),
        delay="5s",  # type: ignore[arg-type]
    )
    await app.publish_group(
        "orders",
        [1],
        callback=("done", None),
        key="k",  # type: ignore[arg-type]
    )
    assert_type(app.publish_stream("orders", [1], batch=10), AsyncIterator[list[Published]])
    app.publish_stream("orders", [1], batches=10)  # type: ignore[call-arg]
    app.subscription("events", "reader", takeover=timedelta(minutes=1))
    app.subscription("events", "reader", takeovers=1)  # type: ignore[call-arg]
    app.worker(concurrency=5, poll="500ms")
    app.worker(concurency=5)  # type: ignore[call-arg]
    await one_event.publish(Order(number=1), key="k")
    await one_event.publish("x")  # type: ignore[arg-type]
    await batch_of_events.publish(Order(number=1))
    await batch_of_events.publish("x")  # type: ignore[call-overload]
    await whole_event.publish({"any": "thing"})
    App(pool_size=3, retry_for=10)
    App(pool_size="3")  # type: ignore[arg-type]


def handle_message() -> Message:
    raise NotImplementedError


def test_registered_functions_have_their_types() -> None:
    assert isinstance(bill, MessageHandler)
    assert isinstance(many, BatchHandler)
    assert bill_sync(Order(number=1), message=None) == Receipt(paid=True)  # type: ignore[arg-type]
