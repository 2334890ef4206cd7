"""Reading signatures: what a handler takes, and what cannot be one."""

import asyncio
import functools
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from notifyq import App, ConfigurationError, Message, PayloadError, Retry
from notifyq.arguments import seconds
from support.database import Connection
from support.rows import register


class Model(BaseModel):
    n: int


@dataclass
class Record:
    n: int


class Typed(TypedDict):
    n: int


@pytest.mark.parametrize(
    ("annotation", "validated"),
    [
        (Model, Model(n=1)),
        (Record, Record(n=1)),
        (Typed, {"n": 1}),
        (dict[str, int], {"n": 1}),
        (Model | None, Model(n=1)),
    ],
)
def test_a_payload_is_validated_by_its_annotation(annotation: Any, validated: object) -> None:
    def handle(payload: Any) -> None: ...

    handle.__annotations__["payload"] = annotation
    handler = register(handle)
    assert handler.takes == ("payload",)
    assert handler.payload is not None
    assert handler.payload.validate_json('{"n": 1}') == validated


async def test_a_handler_does_not_publish_what_it_would_reject(
    app: App, connection: Connection
) -> None:
    @app.handler("numbers")
    async def add(number: int) -> None: ...

    @app.handler("orders", batch=5)
    async def ship(orders: list[Model]) -> None: ...

    @app.handler("unchecked", validate=False)
    async def unchecked(number: int) -> None: ...

    @app.subscriber("news", "reader")
    async def read(record: Record) -> None: ...

    await app.create()
    wrong: Any = "notanint"
    text: Any = "5"
    plain: Any = {"n": 2}
    for publishing in (add.publish(wrong), add.publish_many([1, wrong]), read.publish(wrong)):
        with pytest.raises(PayloadError, match="payload is not valid"):
            await publishing
    with pytest.raises(PayloadError, match=r"handler .*ship: the payload is not valid: n: "):
        await ship.publish(plain | {"n": wrong})
    with pytest.raises(PayloadError, match="payload is not valid"):
        await asyncio.to_thread(add.publish_sync, wrong)
    assert await connection.fetchval("select count(*) from messages.message") == 0
    # Validation is that of JSON: a text that is a number, and a model, are accepted.
    await add.publish(text)
    await ship.publish_many([Model(n=1), plain])
    await unchecked.publish(wrong)
    await app.publish("numbers", wrong)
    stored = await connection.fetch("select message from messages.message order by id")
    assert [row[0] for row in stored] == ["5", {"n": 1}, {"n": 2}, wrong, wrong]


def test_an_annotation_may_carry_constraints() -> None:
    def handle(n: Annotated[int, Field(gt=5)]) -> None: ...

    payload = register(handle).payload
    assert payload is not None
    with pytest.raises(ValueError, match="greater than 5"):
        payload.validate_json("5")


@pytest.mark.parametrize("annotation", [Any, object])
def test_a_payload_annotated_any_is_passed_unchanged(annotation: Any) -> None:
    def handle(payload: Any) -> None: ...

    handle.__annotations__["payload"] = annotation
    assert register(handle).payload is None


def test_a_payload_without_annotation_is_passed_unchanged() -> None:
    def handle(payload): ...  # type: ignore[no-untyped-def]

    handler = register(handle)
    assert (handler.takes, handler.payload, handler.result) == (("payload",), None, None)


def test_a_handler_takes_the_message_at_any_position() -> None:
    def first(message: Message, payload: int) -> None: ...
    def second(payload: int, message: Message) -> None: ...
    def alone(message: Message) -> None: ...
    def nothing() -> None: ...

    assert register(first).takes == ("message", "payload")
    assert register(second).takes == ("payload", "message")
    assert register(alone).takes == ("message",)
    assert register(nothing).takes == ()


def test_a_message_that_is_keyword_only_or_after_a_default_is_passed_by_name() -> None:
    def keyword(payload: int, *, message: Message) -> None: ...

    def after(payload: int, limit: int = 5, message: Message = None) -> None: ...  # type: ignore[assignment]

    for handler in map(register, (keyword, after)):
        assert (handler.takes, handler.names) == (("payload",), (("message", "message"),))


def test_parameters_with_defaults_keep_them() -> None:
    def handle(payload: int, *rest: int, limit: int = 5, **options: Any) -> None: ...

    assert register(handle).takes == ("payload",)


def test_a_parameter_without_a_value_is_refused() -> None:
    def keyword(payload: int, *, limit: int) -> None: ...
    def second(payload: int, limit: int) -> None: ...

    for function in (keyword, second):
        with pytest.raises(ConfigurationError, match="parameter 'limit' has no value"):
            register(function)


@pytest.mark.parametrize("annotation", ["Missing", "pytest.Missing", "list[", "1 + None"])
def test_an_annotation_that_cannot_be_resolved_is_refused(annotation: str) -> None:
    def handle(payload: Any) -> None: ...

    handle.__annotations__["payload"] = annotation
    with pytest.raises(ConfigurationError, match="annotation that cannot be resolved"):
        register(handle)


def test_an_annotation_unknown_to_pydantic_is_refused() -> None:
    class Connection: ...

    def takes(payload: Connection) -> None: ...
    def returns(payload: int) -> Connection:
        return Connection()

    for function in (takes, returns):
        with pytest.raises(ConfigurationError, match="pydantic cannot validate"):
            register(function)


def test_a_callable_that_cannot_be_read_is_refused() -> None:
    class Handle:
        def __call__(self, payload: int) -> None: ...

    for function in (functools.partial(print, sep=""), Handle()):
        with pytest.raises(ConfigurationError, match="cannot be resolved"):
            register(function)


def test_a_second_handler_of_a_queue_is_refused_and_both_are_named() -> None:
    app = App()

    @app.handler("mail")
    def first() -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"'mail' has the handler .*first already: .*second"
    ):

        @app.handler("mail")
        def second() -> None: ...

    assert app.registry.queues() == ("mail",)


def test_a_handler_stays_callable() -> None:
    def double(n: int) -> int:
        return 2 * n

    async def later(n: int) -> int:
        return n

    assert register(double)(4) == 8
    assert not register(double).is_async
    assert register(later).is_async


def test_a_method_can_be_a_handler() -> None:
    class Service:
        def handle(self, n: int, message: Message) -> None: ...

    assert register(Service().handle).takes == ("payload", "message")


def test_a_policy_must_be_a_policy() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a notifyq.Policy, as in .* not \{"):
        App().handler("q", policy={"rate": 5})(lambda: None)  # type: ignore[call-overload]


def test_a_number_is_in_seconds() -> None:
    assert seconds(1.5) == timedelta(milliseconds=1500)
    assert seconds(timedelta(minutes=1)) == timedelta(minutes=1)
    assert seconds(None) is None
    assert Retry(after=3).after == timedelta(seconds=3)
    handler = register(lambda: None, timeout=2, lock_duration=3, backoff=1, backoff_max=9)
    assert handler.timeout == timedelta(seconds=2)
    assert handler.lock_duration == handler.policy.lock_duration == timedelta(seconds=3)
    assert (handler.policy.backoff, handler.policy.backoff_max) == (
        timedelta(seconds=1),
        timedelta(seconds=9),
    )


def test_a_worker_for_a_queue_without_handler_is_refused() -> None:
    app = App("postgresql://nowhere")
    with pytest.raises(ConfigurationError, match="there is no handler"):
        app.worker()
    app.handler("mail")(lambda: None)
    with pytest.raises(ConfigurationError, match=r"no handler for queue 'post'.*mail"):
        app.worker(queues=["post"])


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"timeout": "5"}, r"timeout must be a duration \(timedelta or seconds\).*, not '5'"),
    ({"timeout": -1}, "timeout must be a duration .* not negative, not -1"),
    ({"lock_duration": "5s"}, "lock_duration must be a duration"),
    ({"max_attempts": "5"}, "max_attempts must be between 1 and 1000, not '5'"),
    ({"batch": "5"}, "batch must be between 1 and 10000, not '5'"),
    ({"linger": 1}, "linger needs batch"),
    ({"queue": 5}, "queue must be a text, not 5"),
]


@pytest.mark.parametrize(("options", "reason"), NONSENSE)
def test_a_wrong_option_is_refused_at_the_decorator(options: dict[str, Any], reason: str) -> None:
    async def work(n: int) -> None: ...

    with pytest.raises(ConfigurationError, match=reason):
        App("postgresql://nowhere").handler(**{"queue": "q", **options})(work)


def test_a_retry_after_a_wrong_duration_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="after must be a duration"):
        Retry(after="5")  # type: ignore[arg-type]
