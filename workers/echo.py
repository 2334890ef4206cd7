"""Queue `default`: log each message and return it as the result, which the archive keeps.

notifyq worker echo:app
notifyq publish default '{"hello": "world"}'
notifyq publish default '{"reject": "only a test"}'
"""

from __future__ import annotations

import logging
from typing import Any

from notifyq import App, Message, Reject

log = logging.getLogger("echo")
app = App()


@app.handler("default")
async def echo(payload: Any, message: Message) -> Any:
    """Return the payload; one with the key "reject" is rejected for that reason."""
    log.info("message %d: %s", message.id, message.message)
    if isinstance(payload, dict) and "reject" in payload:
        raise Reject(str(payload["reject"]))
    return payload
