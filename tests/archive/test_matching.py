"""Changes of all messages that match, in Python."""

from datetime import UTC, datetime, timedelta

import pytest

from notifyq import App, Changes, InvalidArgumentError
from support.database import Connection, publish, value


async def test_all_that_match_are_changed_in_steps(database: str, connection: Connection) -> None:
    await value(connection, "create_queue", name="other", capacity=1)
    await publish(connection, 2500)
    async with App(database) as app:
        archive = app.archive
        assert await archive.amend_matching({"queue": "default"}, 3) == Changes(2500, 2500, ())
        some = {"queue": "default", "payload": "$ < 2"}
        moved = await archive.move_matching(some, "other")
        assert (moved.found, moved.done) == (2, 1)
        assert moved.refusals[0].endswith("queue 'other' is full")
        await value(connection, "publish", queue="default", message=1, delay=timedelta(days=1))
        assert await archive.run_now_matching({}) == Changes(1, 1, ())
        before = {"until": datetime(2026, 1, 1, tzinfo=UTC)}
        assert await archive.cancel_matching(before) == Changes(0, 0, ())
        assert await archive.cancel_matching({}, reason="wrong") == Changes(2501, 2501, ())
        with pytest.raises(InvalidArgumentError, match="unknown condition"):
            await archive.cancel_matching({"quue": "default"})
        with pytest.raises(TypeError, match="conditions"):
            await archive.cancel_matching("queue")  # type: ignore[arg-type]
