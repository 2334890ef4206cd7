"""Parts of a screen or a page, each read by its own call: one that is refused hides no other."""

from collections.abc import Awaitable
from typing import TypeVar

import asyncpg

from notifyq.database.refusals import is_refusal
from notifyq.errors import NotifyqError
from notifyq.printable import first_line

Answer = TypeVar("Answer")


class Parts:
    """Reads parts by their names, and keeps why the server refuses one."""

    def __init__(self) -> None:
        self._errors: dict[str, Exception | None] = {}

    async def read(self, name: str, call: Awaitable[Answer], otherwise: Answer) -> Answer:
        """Make the call of a part."""
        try:
            answer = await call
        except (NotifyqError, asyncpg.PostgresError) as error:
            if not is_refusal(error):
                raise
            self._errors[name] = error
            return otherwise
        self._errors[name] = None
        return answer

    def check(self) -> None:
        """Raise the error if each part is refused."""
        errors = list(self._errors.values())
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]

    @property
    def names(self) -> set[str]:
        """Those read so far."""
        return set(self._errors)

    @property
    def refused(self) -> dict[str, str]:
        """The parts that the server refuses now, and why, in one line."""
        return {name: first_line(str(it)) for name, it in self._errors.items() if it is not None}
