"""Decorators without parentheses, and creating what an app declares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from notifyq import App, ConfigurationError, Message
from notifyq.errors import QueueNotFoundError
from notifyq.handlers.handler import Handler
from notifyq.telemetry import MessageFinished
from support.running import Events, working


class Greeting(str):
    """What a resource gives."""

    __slots__ = ()


async def test_decorators_without_arguments(app: App, events: Events) -> None:
    around: list[int] = []

    @app.resource()
    def greeting() -> Greeting:
        return Greeting("hello")

    @app.middleware()
    async def note(message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        around.append(message.id)
        return await call()

    @app.handler
    async def greet(name: str, with_: Greeting) -> str:
        return f"{with_} {name}"

    assert isinstance(greet, Handler)
    assert greet.queue == "default"
    async with working(app, events):
        handle = await greet.publish("you")
        assert await handle.result(timeout=10) == "hello you"
    assert around == [handle]
    assert greeting() == "hello"
    assert events.of(MessageFinished)


def test_a_sync_handler_without_parentheses(app: App) -> None:
    @app.handler
    def double(n: int) -> int:
        return 2 * n

    assert double(2) == 4
    assert app.registry["default"] is double


@pytest.mark.parametrize("given", [(), ("orders",), (print,)], ids=str)
def test_a_subscriber_without_names_is_refused(app: App, given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r'@app.subscriber\("orders", "mailer"\)'):
        app.subscriber(*given)


@pytest.mark.parametrize("given", [(), (print,)], ids=str)
def test_a_cron_function_without_an_expression_is_refused(app: App, given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"@app.cron\("):
        app.cron(*given)


async def test_the_hint_for_a_declared_queue_works(app: App) -> None:
    @app.subscriber("orders", "mailer", position="start")
    async def mail(_n: int) -> None: ...

    app.handler("jobs")(lambda _n: None)
    for publish in (
        lambda: mail.publish(1),
        lambda: app.publish("orders", 1),
        lambda: app.publish_many("jobs", [1]),
        lambda: anext(aiter(app.publish_stream("orders", [1]))),
    ):
        with pytest.raises(QueueNotFoundError, match=r"await app.create\(\)"):
            await publish()
    await app.create()
    assert await mail.publish(1)
    assert await app.publish_many("jobs", [1])
    subscription = app.subscription("orders", "mailer")
    batch = await subscription.next_batch()
    assert batch is not None
    assert [event.payload() for event in batch.events] == [1]
    await batch.finish()
    await app.create()


async def test_the_hint_for_an_undeclared_queue_works(app: App) -> None:
    with pytest.raises(QueueNotFoundError) as raised:
        await app.publish("other", 1)
    assert "app.admin.create_queue('other')" in str(raised.value.hint)
    assert "app.streams.create('other')" in str(raised.value.hint)
    await app.streams.create("other")
    assert await app.publish("other", 1)
