"""How durable work ends a call of a handler. `except Exception` does not catch these."""

from __future__ import annotations


class Parked(BaseException):
    """The message waits without a worker: end the call, it is handled again later."""

    ends_well = True


class LockLostError(BaseException):
    """The lock of the message was lost: another worker may have it, so nothing more is recorded."""


# Tracebacks show their public names.
Parked.__module__ = LockLostError.__module__ = "notifyq"
