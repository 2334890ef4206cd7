"""Everything that a handler can raise, by name; processes import this module too."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from notifyq import App


class Custom(BaseException):
    """Derived from the root of all exceptions."""


class Mute(Exception):  # noqa: N818
    """Has no text and no representation."""

    def __str__(self) -> str:
        raise Custom("no text")

    __repr__ = __str__


class Odd(Exception):  # noqa: N818
    """Has a module that no dictionary takes."""


class Endless(Exception):  # noqa: N818
    """Looks in itself for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


Odd.__module__ = []  # type: ignore[assignment]


class Slippery:
    """A result that no encoder takes."""

    def __iter__(self) -> NoReturn:
        raise Custom("no items")

    def __repr__(self) -> NoReturn:
        raise Custom("no representation")


def recurse() -> None:
    recurse()


RAISED: dict[str, Any] = {
    "GeneratorExit": lambda: GeneratorExit("g"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("k"),
    "CancelledError": lambda: asyncio.CancelledError("c"),
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": lambda: StopAsyncIteration(1),
    "Custom": lambda: Custom("c"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), Custom()]),
    "ExceptionGroup": lambda: ExceptionGroup("g", [ValueError("v"), KeyError("k")]),
    "MemoryError": MemoryError,
    "Mute": Mute,
    "Odd": Odd,
    "Endless": Endless,
    "surrogate": lambda: ValueError("lone \ud800 and \0"),
    "long": lambda: ValueError("x" * 100_000),
}
"""What makes an exception."""


def act(what: str) -> Any:
    """Raise what goes by this name, or return what cannot be encoded."""
    if what == "fine":
        return None
    if what == "recursion":
        recurse()
    if what == "slippery":
        return Slippery()
    raise RAISED[what]()


NAMES = [*RAISED, "recursion", "slippery"]

app = App()


@app.handler("process", executor="process")
def in_process(what: str) -> Any:
    return act(what)
