"""A message queue that lives inside PostgreSQL.

An `INSERT` publishes, a trigger rings `NOTIFY`, workers claim rows, finished messages move to an
archive. The behaviour is that of the SQL functions in schema `messages`; this package calls them.
"""

from notifyq.app import App
from notifyq.deadletters import DeadLetters
from notifyq.errors import (
    AccessDeniedError,
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailableError,
    ForeignPositionError,
    IncompleteInstallError,
    InvalidArgumentError,
    MessageLimitError,
    MessageNotFoundError,
    NotifyqError,
    OutdatedSchemaError,
    QueueBusyError,
    QueueDeniedError,
    QueueNotEmptyError,
    QueueNotFoundError,
    ResourceError,
    RestoredDatabaseError,
    SchemaError,
    SchemaMissingError,
    SchemaTooNewError,
    SchemaTooOldError,
    ServerError,
)
from notifyq.handlers import Handler, Reject, Retry
from notifyq.model import ArchivedMessage, Message, State, Status
from notifyq.payload import Json
from notifyq.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "App",
    "ArchivedMessage",
    "ConfigurationError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DeadLetters",
    "ForeignPositionError",
    "Handler",
    "IncompleteInstallError",
    "InvalidArgumentError",
    "Json",
    "Message",
    "MessageLimitError",
    "MessageNotFoundError",
    "NotifyqError",
    "OutdatedSchemaError",
    "QueueBusyError",
    "QueueDeniedError",
    "QueueNotEmptyError",
    "QueueNotFoundError",
    "Reject",
    "ResourceError",
    "RestoredDatabaseError",
    "Retry",
    "SchemaError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "SchemaTooOldError",
    "ServerError",
    "State",
    "Status",
    "Worker",
    "__version__",
]
