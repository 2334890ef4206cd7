"""What the database holds at the end is read whole, whatever the payloads are."""

from __future__ import annotations

import asyncpg
import pytest

from notifyq.chaos import final as module
from notifyq.chaos.final import Row, read_final
from notifyq.chaos.history import digest
from support.database import Connection, claim_one, publish, value


@pytest.mark.parametrize("has_codec", [True, False])
async def test_live_and_archived_messages_are_read_with_their_keys(
    connection: Connection, database: str, has_codec: bool
) -> None:
    payload = {"key": "a", "text": "ü"}
    await value(connection, "alter_queue", name="default", max_attempts=4)
    first = await value(connection, "publish", queue="default", message=payload)
    message = await claim_one(connection)
    await value(connection, "finish", id=first, lock_token=message["lock_token"], status="failed")
    (second,) = await publish(connection, 1)

    plain = await asyncpg.connect(database)
    found = await read_final(connection if has_codec else plain)
    await plain.close()
    assert found.archive == [
        Row(
            id=first, queue="default", lock_token=1, attempts=1, key="a",
            digest=digest(payload), status="failed",
        )
    ]  # fmt: skip
    assert found.live == [
        Row(id=second, queue="default", lock_token=0, attempts=0, digest=digest(0), state="waiting")
    ]
    assert found.max_attempts == {"default": 4}


@pytest.mark.parametrize("error", [ValueError, RecursionError])
async def test_a_payload_that_cannot_be_decoded_has_no_key_and_no_digest(
    connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(_: str) -> None:
        raise error

    monkeypatch.setattr(module, "decode", refuse)
    await value(connection, "publish", queue="default", message={"key": "a"})
    plain = await asyncpg.connect(database)
    (row,) = (await read_final(plain)).live
    await plain.close()
    assert (row.key, row.digest) == (None, None)
