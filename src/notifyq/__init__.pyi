from .app import App as App, SyncApp as SyncApp
from .archive.dead_letters import DeadLetters as DeadLetters
from .durable.control import LockLostError as LockLostError, Parked as Parked
from .durable.current import emit as emit, progress as progress
from .durable.steps import Signal as Signal, Steps as Steps, StepTransaction as StepTransaction
from .errors import (
    AccessDeniedError as AccessDeniedError,
    BatchNotFoundError as BatchNotFoundError,
    BrokerRefusedError as BrokerRefusedError,
    BrokerUnavailableError as BrokerUnavailableError,
    ConfigurationError as ConfigurationError,
    DatabaseError as DatabaseError,
    DatabaseUnavailableError as DatabaseUnavailableError,
    DeadMessageError as DeadMessageError,
    DecryptionError as DecryptionError,
    EventNotFoundError as EventNotFoundError,
    ForeignPositionError as ForeignPositionError,
    IncompleteInstallError as IncompleteInstallError,
    InvalidArgumentError as InvalidArgumentError,
    InvalidResultError as InvalidResultError,
    LakeChangedError as LakeChangedError,
    LakeError as LakeError,
    LakeInUseError as LakeInUseError,
    LakeNotFoundError as LakeNotFoundError,
    LoadNotFoundError as LoadNotFoundError,
    LockExpiredError as LockExpiredError,
    LockNotHeldError as LockNotHeldError,
    LostReceiptsError as LostReceiptsError,
    MessageFailedError as MessageFailedError,
    MessageLimitError as MessageLimitError,
    MessageNotFoundError as MessageNotFoundError,
    MessageRejectedError as MessageRejectedError,
    MissingKeyError as MissingKeyError,
    NothingOwnedError as NothingOwnedError,
    NotifyqError as NotifyqError,
    OutdatedSchemaError as OutdatedSchemaError,
    PayloadError as PayloadError,
    QueueBusyError as QueueBusyError,
    QueueDeniedError as QueueDeniedError,
    QueueFullError as QueueFullError,
    QueueNotEmptyError as QueueNotEmptyError,
    QueueNotFoundError as QueueNotFoundError,
    ReplayClosedError as ReplayClosedError,
    ResourceError as ResourceError,
    RestoredDatabaseError as RestoredDatabaseError,
    ResultTimeoutError as ResultTimeoutError,
    ScheduleNotFoundError as ScheduleNotFoundError,
    SchemaError as SchemaError,
    SchemaMissingError as SchemaMissingError,
    SchemaTooNewError as SchemaTooNewError,
    SchemaTooOldError as SchemaTooOldError,
    ServerError as ServerError,
    SignalTimeoutError as SignalTimeoutError,
    StagedRowsLostError as StagedRowsLostError,
    StepClosedError as StepClosedError,
    StepError as StepError,
    StepFailedError as StepFailedError,
    StepKindError as StepKindError,
    StepNameError as StepNameError,
    StepNestedError as StepNestedError,
    StepValueError as StepValueError,
    StreamInUseError as StreamInUseError,
    StreamNotFoundError as StreamNotFoundError,
    StreamPausedError as StreamPausedError,
    SubscriptionNotFoundError as SubscriptionNotFoundError,
    WaitError as WaitError,
)
from .handlers.build import HandlerOptions as HandlerOptions, SubscriberOptions as SubscriberOptions
from .handlers.handler import (
    BatchHandler as BatchHandler,
    Handler as Handler,
    MessageHandler as MessageHandler,
)
from .handlers.retries import Reject as Reject, Retry as Retry, Snooze as Snooze
from .handlers.signature import Transaction as Transaction
from .handlers.subscriber import Subscriber as Subscriber
from .models.event import Event as Event, SubscriptionInfo as SubscriptionInfo
from .models.message import (
    ArchivedMessage as ArchivedMessage,
    Attempt as Attempt,
    Cancellation as Cancellation,
    Changes as Changes,
    Dependency as Dependency,
    Message as Message,
    State as State,
    Status as Status,
)
from .models.payload import Json as Json
from .queues.policy import Policy as Policy
from .worker.inbox import MessageInbox as MessageInbox
from .queues.published import Published as Published
from .queues.results import Group as Group, Handle as Handle
from .queues.schedules import (
    Schedule as Schedule,
    ScheduleInfo as ScheduleInfo,
    Schedules as Schedules,
)
from .streams.admin import StreamPolicy as StreamPolicy, Streams as Streams
from .streams.subscription import Batch as Batch, Subscription as Subscription
from .worker.worker import Worker as Worker

__all__: list[str]
__version__: str
