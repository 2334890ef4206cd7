"""The columns that can be read: their types in Spark, and the expressions that read them."""

from __future__ import annotations

ARCHIVE = (
    "id", "queue", "type", "status", "priority", "attempts", "max_attempts", "key", "dedup_key",
    "created_at", "available_at", "locked_at", "archived_at", "lock_token", "xid", "handled_by",
    "subscriber", "event_id", "message", "headers", "details", "result",
    "cancelled_by",
)  # fmt: skip
MESSAGES = (
    "id", "queue", "type", "state", "priority", "attempts", "max_attempts", "key", "dedup_key",
    "created_at", "available_at", "locked_at", "lock_expires_at", "lock_token", "locked_by",
    "message", "headers", "details",
)  # fmt: skip
STATUSES = {"success", "rejected", "failed", "lock_expired"}
EVENTS = ("id", "type", "key", "created_at", "xid", "message", "headers")

_KINDS = {
    **dict.fromkeys(("id", "lock_token", "xid", "event_id"), "bigint"),
    **dict.fromkeys(("priority", "attempts", "max_attempts"), "int"),
}
_AS_TEXT = {"headers", "message", "result", "state", "status"}
"""Columns of types that neither Spark nor Arrow has."""


def kind(name: str) -> str:
    """Return the type of a column in Spark."""
    return "timestamp" if name.endswith("_at") else _KINDS.get(name, "string")


def expression(name: str) -> str:
    """Return what PostgreSQL computes for a column of the table r, in a type that Arrow has."""
    if name == "xid":
        return "r.xid::text::bigint"
    if name == "available_at":
        # Arrow has no infinity, and its years go beyond those of Python.
        return (
            "least(greatest(r.available_at, '0001-01-01 00:00+00'), "
            "'9999-12-31 23:59:59.999999+00')"
        )
    return f"r.{name}::text" if name in _AS_TEXT else f"r.{name}"
