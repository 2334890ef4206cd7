"""A dead message with steps, published again without some of them, in Python."""

import pytest

from notifyq import App, InvalidArgumentError
from support.database import Connection, claim_one, lock_of, publish, value


async def test_a_dead_message_is_published_again_from_a_step(
    database: str, connection: Connection
) -> None:
    [id_] = await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    for name in ("one", "two", "three"):
        await value(connection, "step", **lock, name=name)
    await value(connection, "finish", **lock, status="failed")
    async with App(database) as app:
        with pytest.raises(InvalidArgumentError, match="has no recorded step 'four'"):
            await app.archive.dead_retry_from(id_, "four")
        again = await app.archive.dead_retry_from(id_, "two")
        assert again is not None
        assert [step.name for step in await app.archive.steps(again)] == ["one"]
        assert await app.archive.dead_retry_from(id_) is None
        await app.archive.cancel(again)
        without = await app.archive.dead_retry_from(again)
        assert without is not None
        assert await app.archive.steps(without) == []
