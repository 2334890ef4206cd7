"""The backoff of handlers: whether a failed attempt is followed by another one, and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from tenacity import AsyncRetrying, RetryCallState, wait_exponential

from notifyq.arguments import duration, positive
from notifyq.errors import ConfigurationError
from notifyq.models.message import Message
from notifyq.telemetry.tracebacks import text_of


class Reject(Exception):  # noqa: N818  a signal, not an error
    """Raised by a handler: this message can never be handled. It is archived as rejected."""


class Retry(Exception):  # noqa: N818  a signal, not an error
    """Raised by a handler: try again, `after` this time instead of the backoff.

    The attempt counts: after the last one the message is archived as failed.
    """

    has_traceback: ClassVar[bool] = True
    """Whether the place where it was raised is of use; else only its text is kept and logged."""

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.after = duration("after", after)


class Snooze(Exception):  # noqa: N818  a signal, not an error
    """Raised by a handler: call it again for this message after so long. No attempt is used up.

    In a subscriber it is a `Retry`: the attempt counts.
    """

    def __init__(self, after: timedelta | float) -> None:
        super().__init__(after)  # pickle passes it to this method again
        self.after = positive(after)
        if self.after is None:
            raise ConfigurationError(
                f"Snooze takes a duration, a timedelta or seconds, not {after!r}"
            )

    def __str__(self) -> str:
        return f"for {self.args[0]}"


# The attempt history shows their public names.
Reject.__module__ = Retry.__module__ = Snooze.__module__ = "notifyq"

Wait = timedelta | float | Callable[[RetryCallState], float | timedelta]
"""The base of an exponential backoff, or a wait strategy of tenacity."""
Backoff = Wait | Mapping[Any, Wait | type[Reject] | None]
"""One for all errors, or one for each class of errors, where None means: do not try again."""

_Strategy = Callable[[RetryCallState], Any]
_Rules = dict[type[BaseException], _Strategy | type[Reject] | None]
_BASE, _MOST = timedelta(seconds=2), timedelta(minutes=5)
_CALLER = AsyncRetrying()
_EXPECTED = "a duration (timedelta or seconds) or a wait strategy of tenacity"


@dataclass(frozen=True, slots=True)
class Decision:
    """The consequence of an error."""

    after: timedelta | None = None
    """The delay of the next attempt; None: the backoff of the queue."""
    gives_up: bool = False
    is_rejected: bool = False
    complaint: str | None = None
    """Why a wait strategy gave no delay."""


_BY_QUEUE = Decision()


class Retries:
    """The backoff of a handler; `most` limits its delays, not those of the queue."""

    def __init__(
        self, backoff: Backoff | None = None, most: timedelta | float | None = None
    ) -> None:
        self._most = duration("backoff_max", most)
        self._by_class: _Rules | None = None
        self._for_all: _Strategy | None = None
        self.base: timedelta | None = None
        """The base, if it is a duration: a queue can have it, too."""
        if isinstance(backoff, Mapping):
            self._by_class = {
                _error_class(key): self._rule(key, value) for key, value in backoff.items()
            }
        elif backoff is not None:
            if isinstance(backoff, timedelta | int | float):
                self.base = duration("backoff", backoff)
            self._for_all = self._strategy("backoff", backoff)
        elif most is not None:
            self._for_all = self._strategy("backoff", _BASE)

    @property
    def most(self) -> timedelta | None:
        """The limit, if a queue can have it, too."""
        is_of_durations = self._for_all is None or isinstance(self._for_all, _Growing)
        return self._most if self._by_class is None and is_of_durations else None

    def decide(self, error: BaseException, message: Message) -> Decision:
        """Decide what follows an attempt that ended with an error."""
        if isinstance(error, Retry | Snooze) and error.after is not None:
            return Decision(error.after)
        strategy = self._for_all if self._by_class is None else self._find(error, self._by_class)
        match strategy:
            case None:
                return _BY_QUEUE
            case Decision():
                return strategy
        return self._apply(strategy, error, message)

    def _find(self, error: BaseException, by_class: _Rules) -> _Strategy | Decision | None:
        # A task group wraps the errors of its tasks; a single one is handled as itself.
        while (
            isinstance(error, BaseExceptionGroup)
            and len(error.exceptions) == 1
            and not any(issubclass(known, BaseExceptionGroup) for known in by_class)
        ):
            error = error.exceptions[0]
        for kind in type(error).__mro__:
            if kind not in by_class:
                continue
            rule = by_class[kind]
            if rule is not None and rule is not Reject:
                return rule
            if not isinstance(error, Retry):  # it requests another attempt
                return Decision(gives_up=True, is_rejected=rule is Reject)
        return None

    def _apply(self, strategy: _Strategy, error: BaseException, message: Message) -> Decision:
        state = RetryCallState(_CALLER, None, (message,), {})
        state.attempt_number = message.attempts
        state.set_exception((type(error), error, error.__traceback__))
        try:
            delay = strategy(state)
            after = positive(delay)
            if after is None:
                if hasattr(delay, "close"):
                    delay.close()  # a coroutine: the strategy is an async function
                return Decision(complaint=f"the handler's gave {delay!r}, which is no duration")
        except BaseException as wrong:  # noqa: BLE001  code of the user
            kind = type(wrong).__name__
            return Decision(complaint=f"the handler's raised {kind}: {text_of(wrong)}")
        return Decision(after if self._most is None else min(after, self._most))

    def _rule(
        self, key: type[BaseException], value: Wait | type[Reject] | None
    ) -> _Strategy | type[Reject] | None:
        if value is None or value is Reject:
            return None if value is None else Reject
        return self._strategy(f"backoff of {key.__name__}", value)

    def _strategy(self, name: str, value: Any) -> _Strategy:
        if isinstance(value, timedelta | int | float):
            base = duration(name, value) or timedelta(0)
            return _Growing(base, self._most or max(base, _MOST))
        if not callable(value) or isinstance(value, type):
            raise ConfigurationError(f"{name} must be {_EXPECTED}, not {value!r}")
        strategy: _Strategy = value
        return strategy


class _Growing:
    """The queue's backoff: the delay doubles with each attempt, less up to half at random."""

    def __init__(self, base: timedelta, most: timedelta) -> None:
        self._wait = wait_exponential(multiplier=base.total_seconds(), max=most)

    def __call__(self, state: RetryCallState) -> float:
        return self._wait(state) * random.uniform(0.5, 1)  # noqa: S311


def _error_class(key: Any) -> type[BaseException]:
    if isinstance(key, type) and issubclass(key, BaseException):
        return key
    raise ConfigurationError(
        f"backoff has {key!r} as a key: a mapping needs classes of exceptions as keys, and as "
        f"values {_EXPECTED}, None (do not try again) or notifyq.Reject"
    )
