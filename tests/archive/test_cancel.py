"""Cancelling in Python: a locked, a finished and an unknown message are three different answers."""

from notifyq import App, Cancellation
from support.database import Connection, archived, claim_one, publish


async def test_the_answer_shows_why_a_message_is_not_cancelled(
    app: App, connection: Connection
) -> None:
    waiting, locked = await publish(connection, 2)
    done = await app.archive.cancel(waiting, reason="not needed", cancelled_by="ann")
    assert done is Cancellation.CANCELLED
    assert done
    [row] = await archived(connection, waiting)
    assert (row["details"], row["cancelled_by"]) == ("cancelled: not needed", "ann")
    await claim_one(connection)
    for id_, answer in (
        (waiting, Cancellation.FINISHED),
        (locked, Cancellation.LOCKED),
        (2**62, Cancellation.UNKNOWN),
    ):
        refused = await app.archive.cancel(id_)
        assert refused is answer
        assert not refused
    assert await app.archive.cancel(locked, running=True)
