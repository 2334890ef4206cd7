"""Sections of the dashboard: groups of pages and actions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

Handler: TypeAlias = Callable[[Any], Awaitable[Response]]


class _Id(Convertor[str]):
    """A message id in an address; it may be negative, unlike an `int` of Starlette."""

    regex = "-?[0-9]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: Any) -> str:
        return str(value)


register_url_convertor("id", _Id())


@dataclass(frozen=True, slots=True)
class Entry:
    """A route."""

    path: str
    name: str
    handler: Handler
    is_action: bool = False
    """Whether it is a POST with the token of a form from a page of this dashboard."""
    changes: bool = False
    """Whether it changes the database and needs `--allow-writes`."""
    is_open: bool = False
    """Whether it needs no login."""


@dataclass
class Section:
    """A group of pages; it is in the navigation if it has a title."""

    name: str
    title: str = ""
    key: str = ""
    """The second key of its keyboard shortcut: `q` for `g q`."""
    entries: list[Entry] = field(default_factory=list)

    def page(self, path: str, name: str, *, is_open: bool = False) -> Callable[[Handler], Handler]:
        """Register a GET page; the navigation leads to the page named as its section."""
        return self._register(path, name, is_open=is_open)

    def action(
        self, path: str, name: str, *, changes: bool = True, is_open: bool = False
    ) -> Callable[[Handler], Handler]:
        """Register a POST form; its token, its origin and the right to write are checked before."""
        return self._register(path, name, is_action=True, changes=changes, is_open=is_open)

    def _register(self, path: str, name: str, **flags: bool) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.entries.append(Entry(path, name, handler, **flags))
            return handler

        return register

    def switch(self, action: str, statement: str, done: str) -> None:
        """Register a form that switches an object, named by its field `name`, on or off.

        `queue.pause` is served at `/queues/pause` under the name `pause_queue`.
        """
        kind, verb = action.split(".")

        async def handler(view: Any) -> Response:
            name = view.form.get("name", "")
            changed = await view.change(action, name, statement)
            notice = f"{done} {name}." if changed else f"{name} was {done.lower()} already."
            response: Response = view.back(notice)
            return response

        self.action(f"/{kind}s/{verb}", f"{verb}_{kind}")(handler)
