"""Every error that notifyq raises, as one tree.

NotifyqError
├─ ConfigurationError (ValueError)
├─ ServerError                      the private server cannot be found or started
├─ ResourceError                    a resource of handlers could not be opened
├─ DatabaseUnavailableError         no connection, and no retries left
│  └─ BrokerUnavailableError (ConnectionError)   a message broker does not answer a relay
├─ BrokerRefusedError               a message broker takes nothing for an address
├─ AccessDeniedError                the database user may not do this
├─ LakeError                        a lake is wrong or cannot be reached
├─ DecryptionError                  an envelope was changed or moved, or needs another key
│  └─ MissingKeyError
├─ ResultTimeoutError (TimeoutError)   the message was not finished in time
├─ SignalTimeoutError (TimeoutError)   no signal came in time
├─ StepError                        a step is used wrongly, or has failed
│  ├─ StepFailedError
│  ├─ StepNameError
│  ├─ StepNestedError
│  ├─ StepClosedError
│  ├─ StepValueError
│  └─ WaitError
├─ InvalidResultError (ValueError)     the result is not of the requested type
├─ DeadMessageError                 the awaited message failed permanently
│  ├─ MessageRejectedError
│  ├─ MessageFailedError
│  └─ LockExpiredError
├─ SchemaError
│  ├─ SchemaMissingError
│  ├─ SchemaTooOldError
│  └─ SchemaTooNewError
└─ DatabaseError (asyncpg.PostgresError)     raised by the functions in schema messages
   └─ one class for each SQLSTATE NQ001 to NQ905, below

asyncpg itself raises the classes that have an SQLSTATE: a subclass of its PostgresError is
registered by its code.
"""

import collections.abc
import difflib
import functools
import typing

import asyncpg


class NotifyqError(Exception):
    """The base of all errors of notifyq; its text is one line with what to do."""


class ConfigurationError(NotifyqError, ValueError):
    """A setting, an argument or a module path is wrong."""


class ServerError(NotifyqError):
    """The private PostgreSQL cannot be found, started or stopped."""


class ResourceError(NotifyqError):
    """A resource of handlers could not be opened; `__cause__` is the reason."""


class DatabaseUnavailableError(NotifyqError):
    """The server cannot be reached, even after the retries."""


class BrokerUnavailableError(DatabaseUnavailableError, ConnectionError):
    """The message broker of a relay cannot be reached, or does not answer."""


class BrokerRefusedError(NotifyqError):
    """The message broker of a relay takes nothing for an address: it is missing, full or denied."""


class AccessDeniedError(NotifyqError):
    """The database user lacks a privilege that the call needs."""


class LakeError(NotifyqError):
    """It is no lake, cannot be reached, belongs to another database, or lacks files."""


class ResultTimeoutError(NotifyqError, TimeoutError):
    """The message was not finished in time; it is not cancelled."""


class SignalTimeoutError(NotifyqError, TimeoutError):
    """No signal came in time; later calls of the handler raise it again."""


class DecryptionError(NotifyqError, ValueError):
    """It cannot be decrypted: it was changed or moved, or the key is another one of this id."""


class MissingKeyError(DecryptionError):
    """It is encrypted, and the program does not have the key."""

    key: str = ""
    """The id of the key."""


class StepError(NotifyqError):
    """A step of a handler is used wrongly, or has failed."""


class StepFailedError(StepError):
    """The step raised one of its `errors`, in this call of the handler or in an earlier one."""


class StepNameError(StepError):
    """The name of a step is too long, used twice in one call, or has no function."""


class StepNestedError(StepError):
    """A step is called inside another one."""


class StepClosedError(StepError):
    """A step is called after its handler has returned."""


class StepValueError(StepError):
    """What a step returned cannot be written as JSON, or PostgreSQL cannot store it."""


class WaitError(StepError):
    """The handler waits for two things at once."""


class InvalidResultError(NotifyqError, ValueError):
    """The handler returned a result that is not of the requested type."""


_LONGEST = 300
"""Characters of a reason in the text of an error."""


class DeadMessageError(NotifyqError):
    """The awaited message failed permanently: it has no result."""

    ending: typing.ClassVar[str] = "failed permanently"

    def __init__(self, *, message_id: int, queue: str, attempts: int, details: str | None) -> None:
        # The lines behind the first one are the traceback.
        reason = " ".join((details or "").partition("\n")[0].split()) or "no reason given"
        if len(reason) > _LONGEST:
            reason = f"{reason[: _LONGEST - 1]}…"
        super().__init__(f"message {message_id} of queue {queue!r} {self.ending}: {reason}")
        self.message_id = message_id
        self.queue = queue
        self.attempts = attempts
        self.details = details
        """The reason as the archive has it: the error and its traceback."""

    def __reduce__(self) -> tuple[typing.Any, ...]:
        """Make it picklable: pickle cannot pass keyword arguments otherwise."""
        names = ("message_id", "queue", "attempts", "details")
        return functools.partial(type(self), **{name: getattr(self, name) for name in names}), ()


class MessageRejectedError(DeadMessageError):
    """The message was rejected: it can never be handled."""

    ending = "was rejected"


class MessageFailedError(DeadMessageError):
    """The last attempt at the message failed."""

    ending = "failed"


class LockExpiredError(DeadMessageError):
    """The worker of the message crashed, or its handler outlived the lock."""

    ending = "outlived its lock"


class SchemaError(NotifyqError):
    """This version cannot work with the schema in the database."""


class SchemaMissingError(SchemaError):
    """The schema is not installed in this database."""


class SchemaTooOldError(SchemaError):
    """The schema is older than this version needs."""


class SchemaTooNewError(SchemaError):
    """The schema is newer than this version, and no longer supports it."""


class DatabaseError(NotifyqError, asyncpg.PostgresError):
    """An error that a function of schema messages raised, with SQLSTATE class NQ."""


def meant(name: str, known: collections.abc.Iterable[str]) -> str:
    """The end of an error about an unknown name: the most similar one, if there is one."""
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def reason(error: BaseException) -> str:
    """The text of an error, with the hint of the database if there is one."""
    text = str(error.args[0]) if error.args else type(error).__name__
    return ": ".join(filter(None, (text, getattr(error, "hint", None))))


class QueueNotFoundError(DatabaseError):
    """There is no queue of this name."""

    sqlstate = "NQ001"


class MessageNotFoundError(DatabaseError):
    """There is no message with this id, or it is no longer kept."""

    sqlstate = "NQ002"


class InvalidArgumentError(DatabaseError):
    """The function does not accept this argument."""

    sqlstate = "NQ003"


class QueueNotEmptyError(DatabaseError):
    """The queue still has messages, and `force` was not given."""

    sqlstate = "NQ005"


class QueueDeniedError(DatabaseError, AccessDeniedError):
    """The queue has grants, and none of them allows this to the role; or it may not read it."""

    sqlstate = "NQ007"


class MessageLimitError(DatabaseError):
    """The message is larger than its queue allows, nested too deeply, or has too long a number."""

    sqlstate = "NQ008"


class QueueBusyError(DatabaseError):
    """Other transactions use the queue, and the call has waited for them too long."""

    sqlstate = "NQ009"


class QueueFullError(DatabaseError):
    """The queue has reached its capacity."""

    sqlstate = "NQ010"


class LockNotHeldError(DatabaseError):
    """The lock of the message was lost; another worker may have it."""

    sqlstate = "NQ011"


class StepKindError(DatabaseError):
    """The name is recorded as another kind of step."""

    sqlstate = "NQ012"


class ScheduleNotFoundError(DatabaseError):
    """There is no schedule of this name."""

    sqlstate = "NQ017"


class NothingOwnedError(DatabaseError):
    """This session owns no message and has not called wait()."""

    sqlstate = "NQ018"


class StreamNotFoundError(DatabaseError):
    """There is no stream of this name."""

    sqlstate = "NQ020"


class SubscriptionNotFoundError(DatabaseError):
    """The stream has no subscriber of this name."""

    sqlstate = "NQ021"


class BatchNotFoundError(DatabaseError):
    """There is no batch with this id, or it is finished."""

    sqlstate = "NQ022"


class EventNotFoundError(DatabaseError):
    """The batch has no such event."""

    sqlstate = "NQ023"


class StreamPausedError(DatabaseError):
    """The stream is paused: nothing can be published until it is resumed."""

    sqlstate = "NQ024"


class StreamInUseError(DatabaseError):
    """The stream has subscribers; only `force` drops it."""

    sqlstate = "NQ025"


class PayloadError(DatabaseError):
    """The message does not match the schema of its queue; the text names the path."""

    sqlstate = "NQ030"


class LakeNotFoundError(DatabaseError):
    """There is no lake with this number."""

    sqlstate = "NQ031"


class LakeInUseError(DatabaseError):
    """Another session is writing the lake."""

    sqlstate = "NQ032"


class LakeChangedError(DatabaseError):
    """Another session has changed the lake in the meantime; nothing was written."""

    sqlstate = "NQ033"


class LoadNotFoundError(DatabaseError):
    """This role has begun no such load or replay."""

    sqlstate = "NQ035"


class StagedRowsLostError(DatabaseError):
    """Rows that were staged for a load are lost: the server has crashed."""

    sqlstate = "NQ036"


class ReplayClosedError(DatabaseError):
    """The replay of this name has ended, or publishes into another target."""

    sqlstate = "NQ037"


class OutdatedSchemaError(DatabaseError):
    """The init files were run on an older schema, which only migrations may change."""

    sqlstate = "NQ901"


class IncompleteInstallError(DatabaseError):
    """A part of the installation is missing."""

    sqlstate = "NQ902"


class RestoredDatabaseError(DatabaseError):
    """The database came from another server: `notifyq migrate --adopt` takes it over."""

    sqlstate = "NQ903"


class ForeignPositionError(DatabaseError):
    """The position is of another server, from before a restore, or newer than this server."""

    sqlstate = "NQ904"


class LostReceiptsError(DatabaseError):
    """The target of a relay was restored: it has lost messages that it had received."""

    sqlstate = "NQ905"


REFUSED = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.DatatypeMismatchError,
    InvalidArgumentError,
    MessageLimitError,
    PayloadError,
)
"""Errors that concern one message: it fails again, and others may be accepted. The function
is_refusal has this list in SQL."""
