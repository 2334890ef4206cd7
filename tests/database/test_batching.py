"""Items of many callers in one statement."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass

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
