"""Every error that notifyq raises, as one tree.

NotifyqError
├─ ConfigurationError (ValueError)
├─ ServerError                      the embedded server cannot be found or started
├─ ResourceError                    what handlers share could not be opened
├─ DatabaseUnavailableError         no connection, and the retries are used up
├─ AccessDeniedError                the database user may not do this
├─ LakeError                        the folder of a lake is not as it should be
├─ ResultTimeoutError (TimeoutError)   the message was not finished in time
├─ InvalidResultError (ValueError)     the result is not of the type that was asked for
├─ DeadMessageError                 the message whose result was waited for has died
│  ├─ MessageRejectedError
│  ├─ MessageFailedError
│  └─ LockExpiredError
├─ SchemaError
│  ├─ SchemaMissingError
│  ├─ SchemaTooOldError
│  └─ SchemaTooNewError
└─ DatabaseError (asyncpg.PostgresError)     raised by the functions in schema messages
   ├─ QueueNotFoundError     NQ001
   ├─ MessageNotFoundError   NQ002
   ├─ InvalidArgumentError   NQ003
   ├─ QueueNotEmptyError     NQ005
   ├─ QueueDeniedError       NQ007, also an AccessDeniedError
   ├─ MessageLimitError      NQ008
   ├─ QueueBusyError         NQ009
   ├─ QueueFullError         NQ010
   ├─ ScheduleNotFoundError  NQ017
   ├─ NothingOwnedError      NQ018
   ├─ StreamNotFoundError    NQ020
   ├─ SubscriptionNotFoundError  NQ021
   ├─ BatchNotFoundError     NQ022
   ├─ EventNotFoundError     NQ023
   ├─ StreamPausedError      NQ024
   ├─ StreamInUseError       NQ025
   ├─ PayloadError           NQ030
   ├─ LakeNotFoundError      NQ031
   ├─ LakeInUseError         NQ032
   ├─ LakeChangedError       NQ033
   ├─ LoadNotFoundError      NQ035
   ├─ StagedRowsLostError    NQ036
   ├─ ReplayClosedError      NQ037
   ├─ OutdatedSchemaError    NQ901
   ├─ IncompleteInstallError NQ902
   ├─ RestoredDatabaseError  NQ903
   ├─ ForeignPositionError   NQ904
   └─ LostReceiptsError      NQ905

asyncpg raises the classes that carry an SQLSTATE by itself: deriving from its PostgresError
registers them, so nothing maps codes and no text of an error is ever read.
"""

import functools
import typing

import asyncpg


class NotifyqError(Exception):
    """The root of all errors of notifyq; its text is one line that says what to do."""


class ConfigurationError(NotifyqError, ValueError):
    """A setting, an argument or a module path is wrong."""


class ServerError(NotifyqError):
    """The embedded PostgreSQL cannot be found, started or stopped."""


class ResourceError(NotifyqError):
    """A resource that handlers take could not be opened; `__cause__` says why."""


class DatabaseUnavailableError(NotifyqError):
    """The server cannot be reached, also after the retries."""


class AccessDeniedError(NotifyqError):
    """The database user lacks a right that the call needs."""


class LakeError(NotifyqError):
    """The folder of a lake is none, is of another database, or has not the files that it should."""


class ResultTimeoutError(NotifyqError, TimeoutError):
    """The message was not finished in time; it goes on all the same."""


class InvalidResultError(NotifyqError, ValueError):
    """What the handler returned is not of the type that was asked for."""


_LONGEST = 300
"""Characters of a reason in the text of an error."""


class DeadMessageError(NotifyqError):
    """The message whose result was waited for has died: there is no result."""

    ending: typing.ClassVar[str] = "died"

    def __init__(self, *, message_id: int, queue: str, attempts: int, details: str | None) -> None:
        # What comes behind the first line is where it was raised.
        reason = " ".join((details or "").partition("\n")[0].split()) or "no reason given"
        if len(reason) > _LONGEST:
            reason = f"{reason[: _LONGEST - 1]}…"
        super().__init__(f"message {message_id} of queue {queue!r} {self.ending}: {reason}")
        self.message_id = message_id
        self.queue = queue
        self.attempts = attempts
        self.details = details
        """Why, as the archive has it: the error, and the lines where it was raised."""

    def __reduce__(self) -> tuple[typing.Any, ...]:
        """Errors that take names cannot be pickled otherwise."""
        values = {name: getattr(self, name) for name in _DEAD_FIELDS}
        return functools.partial(type(self), **values), ()


_DEAD_FIELDS = ("message_id", "queue", "attempts", "details")


class MessageRejectedError(DeadMessageError):
    """The message was rejected: it can never be handled."""

    ending = "was rejected"


class MessageFailedError(DeadMessageError):
    """The last attempt at the message has failed."""

    ending = "failed"


class LockExpiredError(DeadMessageError):
    """The worker that had the message died, or its handler outlived the lock."""

    ending = "outlived its lock"


class SchemaError(NotifyqError):
    """The schema in the database is not one that this version can work with."""


class SchemaMissingError(SchemaError):
    """The schema is not installed in this database."""


class SchemaTooOldError(SchemaError):
    """The schema is older than this version needs."""


class SchemaTooNewError(SchemaError):
    """The schema is newer than this version knows, and no longer serves it."""


class DatabaseError(NotifyqError, asyncpg.PostgresError):
    """An error that a function of schema messages raised, with SQLSTATE class NQ."""


def reason(error: BaseException) -> str:
    """What an error says, and what to do about it where the database tells that."""
    said = str(error.args[0]) if error.args else type(error).__name__
    return ": ".join(filter(None, (said, getattr(error, "hint", None))))


class QueueNotFoundError(DatabaseError):
    """There is no queue of this name."""

    sqlstate = "NQ001"


class MessageNotFoundError(DatabaseError):
    """There is no message with this id, or it is no longer kept."""

    sqlstate = "NQ002"


class InvalidArgumentError(DatabaseError):
    """An argument is outside of what the function takes."""

    sqlstate = "NQ003"


class QueueNotEmptyError(DatabaseError):
    """The queue still has messages, and force was not asked for."""

    sqlstate = "NQ005"


class QueueDeniedError(DatabaseError, AccessDeniedError):
    """The queue has grants, and none of them lets the role of this session do it."""

    sqlstate = "NQ007"


class MessageLimitError(DatabaseError):
    """The message is larger than its queue takes, nested too deeply, or has too long a number."""

    sqlstate = "NQ008"


class QueueBusyError(DatabaseError):
    """Transactions that use the queue stay open, and the call has waited for them for long."""

    sqlstate = "NQ009"


class QueueFullError(DatabaseError):
    """As many messages wait in the queue as its capacity allows."""

    sqlstate = "NQ010"


class ScheduleNotFoundError(DatabaseError):
    """There is no schedule of this name."""

    sqlstate = "NQ017"


class NothingOwnedError(DatabaseError):
    """This session owns no message, and has not waited for one."""

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
    """The event is none of the batch."""

    sqlstate = "NQ023"


class StreamPausedError(DatabaseError):
    """Nothing can be published into the stream until it is resumed."""

    sqlstate = "NQ024"


class StreamInUseError(DatabaseError):
    """The stream has subscribers, so it is not dropped unless by force."""

    sqlstate = "NQ025"


class PayloadError(DatabaseError):
    """The message does not satisfy the schema of its queue; the text has the path."""

    sqlstate = "NQ030"


class LakeNotFoundError(DatabaseError):
    """There is no lake with this number, or no more."""

    sqlstate = "NQ031"


class LakeInUseError(DatabaseError):
    """Another session is writing the lake."""

    sqlstate = "NQ032"


class LakeChangedError(DatabaseError):
    """Another session has changed the lake meanwhile; nothing was written."""

    sqlstate = "NQ033"


class LoadNotFoundError(DatabaseError):
    """The load or the replay was not begun, or by another role."""

    sqlstate = "NQ035"


class StagedRowsLostError(DatabaseError):
    """Rows that were staged for a load are not there any more: the server has crashed."""

    sqlstate = "NQ036"


class ReplayClosedError(DatabaseError):
    """The replay of this name is over, or publishes into another target."""

    sqlstate = "NQ037"


class OutdatedSchemaError(DatabaseError):
    """The init files were run over an older schema, which only migrations may change."""

    sqlstate = "NQ901"


class IncompleteInstallError(DatabaseError):
    """Something that an install must have is missing."""

    sqlstate = "NQ902"


class RestoredDatabaseError(DatabaseError):
    """The database came from another server: `notifyq migrate --adopt` takes it over."""

    sqlstate = "NQ903"


class ForeignPositionError(DatabaseError):
    """The position was taken on another server, before a restore, or is ahead of this one."""

    sqlstate = "NQ904"


class LostReceiptsError(DatabaseError):
    """The target of a relay was restored: it lacks messages that it had received."""

    sqlstate = "NQ905"
