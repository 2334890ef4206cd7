"""Items of many callers in one statement."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass

import pytest

from notifyq.database.batching import Batcher, Item

CALLER: ContextVar[str | None] = ContextVar("caller", default=None)


@dataclass(slots=True)
class Number(Item[int]):
    value: int

    @property
    def key(self) -> int:
        return self.value


async def test_a_statement_is_of_no_caller() -> None:
    seen: list[tuple[str | None, list[int]]] = []

    async def send(numbers: list[Number]) -> dict[int, int]:
        seen.append((CALLER.get(), [it.value for it in numbers]))
        return {it.key: it.value * 10 for it in numbers if it.value != 2}

    batcher = Batcher(send, otherwise=-1)

    async def call(value: int) -> int:
        CALLER.set(f"caller {value}")
        number = Number(asyncio.get_running_loop().create_future(), value)
        batcher.add(number)
        return await number.answered

    assert await asyncio.gather(*map(call, (1, 2, 3))) == [10, -1, 30]
    assert seen == [(None, [1, 2, 3])]


def number(value: int) -> Number:
    return Number(asyncio.get_running_loop().create_future(), value)


async def test_a_close_that_is_cancelled_is_cancelled() -> None:
    is_sending, ends = asyncio.Event(), asyncio.Event()

    async def send(_numbers: list[Number]) -> dict[int, int]:
        is_sending.set()
        try:
            await asyncio.Event().wait()
        finally:
            await ends.wait()
        return {}

    batcher = Batcher(send, otherwise=-1)
    batcher.add(number(1))
    await is_sending.wait()
    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0)
    closing.cancel()
    ends.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await batcher.close()


async def test_what_comes_after_a_close_gets_an_answer() -> None:
    async def send(numbers: list[Number]) -> dict[int, int]:
        return {it.key: it.value for it in numbers}

    batcher = Batcher(send, otherwise=-1)
    first, second = number(1), number(2)
    batcher.add(first)
    await batcher.close()  # before the task has begun
    assert first.answered.cancelled()
    batcher.add(second)
    async with asyncio.timeout(10):
        assert await second.answered == 2
