"""A message queue that lives inside PostgreSQL.

An `INSERT` publishes, a trigger rings `NOTIFY`, workers claim rows, finished messages move to an
archive. The behaviour is that of the SQL functions in schema `messages`; this package calls them.
"""

from notifyq.admin import Policy
from notifyq.app import App
from notifyq.deadletters import DeadLetters
from notifyq.errors import (
    AccessDeniedError,
    BatchNotFoundError,
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailableError,
    DeadMessageError,
    EventNotFoundError,
    ForeignPositionError,
    IncompleteInstallError,
    InvalidArgumentError,
    InvalidResultError,
    LakeChangedError,
    LakeError,
    LakeInUseError,
    LakeNotFoundError,
    LoadNotFoundError,
    LockExpiredError,
    LostReceiptsError,
    MessageFailedError,
    MessageLimitError,
    MessageNotFoundError,
    MessageRejectedError,
    NothingOwnedError,
    NotifyqError,
    OutdatedSchemaError,
    PayloadError,
    QueueBusyError,
    QueueDeniedError,
    QueueFullError,
    QueueNotEmptyError,
    QueueNotFoundError,
    ReplayClosedError,
    ResourceError,
    RestoredDatabaseError,
    ResultTimeoutError,
    ScheduleNotFoundError,
    SchemaError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
    ServerError,
    StagedRowsLostError,
    StreamInUseError,
    StreamNotFoundError,
    StreamPausedError,
    SubscriptionNotFoundError,
)
from notifyq.event import Event, SubscriptionInfo
from notifyq.groups import Group
from notifyq.handlers import BatchHandler, Handler, MessageHandler
from notifyq.model import ArchivedMessage, Attempt, Dependency, Message, State, Status
from notifyq.payload import Json
from notifyq.registry import HandlerOptions
from notifyq.results import Handle
from notifyq.retries import Reject, Retry
from notifyq.schedules import Schedule, ScheduleInfo, Schedules
from notifyq.signature import Transaction
from notifyq.streams import StreamPolicy, Streams
from notifyq.subscribers import Subscriber, SubscriberOptions
from notifyq.subscription import Batch, Subscription
from notifyq.waiting import MessageInbox
from notifyq.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "App",
    "ArchivedMessage",
    "Attempt",
    "Batch",
    "BatchHandler",
    "BatchNotFoundError",
    "ConfigurationError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DeadLetters",
    "DeadMessageError",
    "Dependency",
    "Event",
    "EventNotFoundError",
    "ForeignPositionError",
    "Group",
    "Handle",
    "Handler",
    "HandlerOptions",
    "IncompleteInstallError",
    "InvalidArgumentError",
    "InvalidResultError",
    "Json",
    "LakeChangedError",
    "LakeError",
    "LakeInUseError",
    "LakeNotFoundError",
    "LoadNotFoundError",
    "LockExpiredError",
    "LostReceiptsError",
    "Message",
    "MessageFailedError",
    "MessageHandler",
    "MessageInbox",
    "MessageLimitError",
    "MessageNotFoundError",
    "MessageRejectedError",
    "NothingOwnedError",
    "NotifyqError",
    "OutdatedSchemaError",
    "PayloadError",
    "Policy",
    "QueueBusyError",
    "QueueDeniedError",
    "QueueFullError",
    "QueueNotEmptyError",
    "QueueNotFoundError",
    "Reject",
    "ReplayClosedError",
    "ResourceError",
    "RestoredDatabaseError",
    "ResultTimeoutError",
    "Retry",
    "Schedule",
    "ScheduleInfo",
    "ScheduleNotFoundError",
    "Schedules",
    "SchemaError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "SchemaTooOldError",
    "ServerError",
    "StagedRowsLostError",
    "State",
    "Status",
    "StreamInUseError",
    "StreamNotFoundError",
    "StreamPausedError",
    "StreamPolicy",
    "Streams",
    "Subscriber",
    "SubscriberOptions",
    "Subscription",
    "SubscriptionInfo",
    "SubscriptionNotFoundError",
    "Transaction",
    "Worker",
    "__version__",
]
