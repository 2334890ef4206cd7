"""Tags for Sentry, whose stock integration makes events of the errors in the log."""

from __future__ import annotations

from typing import Any


def tag_failures(event: Any, hint: Any) -> Any:
    """Tag the event of a final failure with queue, message id, attempt and trace id.

    For a stream: stream, subscriber, event id, attempt and trace id. It is a `before_send` of
    `sentry_sdk.init()`, and returns every event.
    """
    record = hint.get("log_record")
    fields = getattr(record, "event", None)
    if record is not None and record.name == "notifyq.worker" and isinstance(fields, dict):
        tags = {name: str(value) for name, value in fields.items() if value is not None}
        event["tags"] = dict(event.get("tags") or ()) | tags
    return event
