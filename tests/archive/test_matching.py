"""Changes of all messages that match, in Python."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from notifyq import App, Changes, InvalidArgumentError
from notifyq.streams.admin import as_position
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


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the program in another time zone than the server."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
async def test_an_instant_without_a_zone_is_local(database: str, connection: Connection) -> None:
    await publish(connection, 1)
    a_minute_ago = datetime.now() - timedelta(minutes=1)  # noqa: DTZ005  what is tested
    async with App(database) as app:
        conditions = {"queue": "default", "since": a_minute_ago}
        assert await app.archive.cancel_matching(conditions) == Changes(1, 1, ())
    assert as_position(datetime(2026, 1, 2)) == "2026-01-02T00:00:00+09:00"  # noqa: DTZ001
    assert as_position(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00+00:00"
