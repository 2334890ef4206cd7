"""Sections: the parts of the dashboard, each with its pages and actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.convertors import Convertor, register_url_convertor

if TYPE_CHECKING:
    from starlette.responses import Response

    # Takes the view of a request.
    Handler: TypeAlias = Callable[[Any], Awaitable[Response]]


class _Id(Convertor[str]):
    """An id in an address; Starlette's numbers have no sign, and a link to one must not fail."""

    regex = "-?[0-9]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: Any) -> str:
        return str(value)


register_url_convertor("id", _Id())


@dataclass(frozen=True, slots=True)
class Entry:
    """An address that is served."""

    path: str
    name: str
    handler: Handler
    is_action: bool = False
    """Whether it is asked by POST, with the token of a form, from a page of ours."""
    changes: bool = False
    """Whether it changes the database, so that it needs `--allow-writes`."""
    is_open: bool = False
    """Whether also those may ask who have not logged in."""


@dataclass
class Section:
    """A part of the dashboard, with a place in the navigation unless it has no title."""

    name: str
    title: str = ""
    key: str = ""
    """The second key of its shortcut: `q` for `g q`."""
    entries: list[Entry] = field(default_factory=list)

    def page(self, path: str, name: str, *, is_open: bool = False) -> Callable[[Handler], Handler]:
        """Serve a page by GET. The page of the navigation is the one named as its section."""

        def register(handler: Handler) -> Handler:
            self.entries.append(Entry(path, name, handler, is_open=is_open))
            return handler

        return register

    def action(
        self, path: str, name: str, *, changes: bool = True, is_open: bool = False
    ) -> Callable[[Handler], Handler]:
        """Serve a form by POST, after its token, its origin and the right to write were checked."""

        def register(handler: Handler) -> Handler:
            self.entries.append(
                Entry(path, name, handler, is_action=True, changes=changes, is_open=is_open)
            )
            return handler

        return register
