"""What the publisher makes of payloads that PostgreSQL does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from notifyq import ConfigurationError, Json

if TYPE_CHECKING:
    from database import Connection
    from notifyq import App


@pytest.mark.parametrize("payload", [float("nan"), "a\x00b", Json("{"), Json(r'"\ud800"')])
async def test_a_payload_that_cannot_be_stored_is_refused_in_one_line(
    app: App, connection: Connection, payload: Any
) -> None:
    with pytest.raises(ConfigurationError, match="cannot store the message"):
        await app.publish("default", payload)
    with pytest.raises(ConfigurationError, match="cannot store the message"):
        await app.publish_many("default", [1, payload])
    with pytest.raises(ConfigurationError, match="cannot store the message"):
        await app.publish("default", payload, connection=connection)
    assert not await app.archive.live()


async def test_a_codec_of_the_callers_connection_changes_no_payload(
    app: App, connection: Connection
) -> None:
    payload = {"text": "1", "list": [1, None]}
    first = await app.publish("default", payload, connection=connection, headers={"a": "b"})
    second = await app.publish_many("default", [payload], connection=connection)
    for message in await app.archive.live():
        assert message.id in {first, *second}
        assert message.payload() == payload
