"""What pages work with: the request, the user, the database, and ways to respond."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from notifyq.database.encryption.envelopes import Keys
from notifyq.database.installs import ours
from notifyq.database.pool import Database
from notifyq.operations.dashboard.attempts import Attempts
from notifyq.operations.dashboard.live import Live
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.sessions import Session, Sessions
from notifyq.operations.dashboard.templating import digest
from notifyq.operations.dashboard.users import User, Users
from notifyq.operations.masks import Masks
from notifyq.operations.monitor import Action, acting
from notifyq.operations.parts import Parts

Form: TypeAlias = ImmutableMultiDict[str, str]

NOTICE = "notice"
_MOST_NOTICE = 1000
_MOST_KEPT = 100
_NO_CHOICES: Mapping[str, str] = {}


class Cache:
    """Keeps answers by key; concurrent callers wait for the same answer."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[asyncio.Future[Any], float]] = {}

    async def get(self, key: Hashable, seconds: float, read: Callable[[], Awaitable[Any]]) -> Any:
        """An answer that is not older than this."""
        answer, until = self._kept.get(key, (None, 0.0))
        if answer is None or (answer.done() and until < time.monotonic()):
            # A separate task, because others still wait when the first caller is cancelled.
            answer = asyncio.ensure_future(read())
            self._kept.pop(key, None)
            self._kept[key] = answer, time.monotonic() + seconds
            if len(self._kept) > _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
        try:
            return await asyncio.shield(answer)
        except Exception:
            # Errors are not kept.
            if self._kept.get(key, (None,))[0] is answer:
                del self._kept[key]
            raise

    def forget(self) -> None:
        """Drop all answers after a change, also those that are being read: they may be older."""
        self._kept.clear()


@dataclass(kw_only=True)
class Dashboard:
    """What all requests share."""

    database: Database
    """For reading: few connections, and slow statements are cancelled."""
    writer: Database
    """For actions, which may wait for locks."""
    live: Live
    templates: Environment
    sections: Sequence[Section]
    users: Users | None = None
    authenticate: Callable[[Any], User | None] | None = None
    """A function of the surrounding application that takes the request and returns the user."""
    sessions: Sessions
    attempts: Attempts
    hosts: tuple[str, ...]
    """Accepted host names, or `*`. Without this check another site could point its own name at this
    address and act in the browser of a user."""
    base_path: str
    """The beginning of all paths behind a proxy, such as `/notifyq`."""
    allow_writes: bool
    masks: Masks
    keys: Keys | None = None
    """They decrypt messages for users with write access."""
    cache: Cache = field(default_factory=Cache)
    checked: Any = None
    """The last findings of the checks."""

    def user_of(self, request: Request, session: Session) -> User | None:
        """The user now: the session may end, and the password change, while a page is open."""
        if self.authenticate is not None:
            return self.authenticate(request)
        return self.sessions.user_of(session, self.users) if self.users else None


@dataclass(eq=False)
class View:
    """One request."""

    request: Request
    dashboard: Dashboard
    session: Session
    user: User | None
    section: str = ""
    form: Form = field(default_factory=ImmutableMultiDict)
    """The fields of an action."""
    parts: Parts = field(default_factory=Parts)
    """What the page has read; the template shows instead of a part why it is refused."""

    def __post_init__(self) -> None:
        self.database = self.dashboard.database
        """The connections for reading."""
        self.masks = self.dashboard.masks
        """What is hidden of payloads, headers and results."""
        self.is_open = self.dashboard.users is None and self.dashboard.authenticate is None
        """Whether no login is needed."""
        self.is_inside = self.is_open or self.user is not None
        """Whether the user may see more than the login page."""
        is_allowed = self.user.may_write if self.user else self.is_open
        self.may_write = self.dashboard.allow_writes and is_allowed
        """Whether the user may change anything; if not, no forms are shown."""
        self.keys = self.dashboard.keys if self.may_write else None
        """What decrypts messages; None: envelopes are shown."""
        self.root = str(self.request.scope.get("root_path", ""))
        """The beginning of all paths: empty, or like /notifyq."""
        self.cookie_path = self.root or "/"
        self.actor = self.user.name if self.user else "anonymous"
        """The name of the user in the audit."""
        self.address = self.request.client.host if self.request.client else "unknown"
        """The address of the client."""

    @property
    def is_still_inside(self) -> bool:
        """The same at this moment, for long responses."""
        return self.is_open or self.dashboard.user_of(self.request, self.session) is not None

    @property
    def token(self) -> str:
        """The field `csrf` of each form."""
        return self.dashboard.sessions.token(self.session)

    def query(self, name: str, default: str = "") -> str:
        """A query parameter, stripped."""
        return self.request.query_params.get(name, default).strip()

    def number(self, name: str) -> int | None:
        """A query parameter that is a bigint, or None; 400 for anything else."""
        text = self.query(name)
        return self.integer(text, name) if text else None

    @staticmethod
    def integer(text: str, name: str = "id") -> int:
        """Read a bigint of a form or an address; 400 for anything else."""
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) < 20
        if not is_number or not -(2**63) <= int(text) < 2**63:
            raise HTTPException(400, f"{name} is not a number")
        return int(text)

    def url(self, name: str, /, **params: Any) -> str:
        """The address of a page; parameters that are not in its path go to the query, unless None.

        Names of queues and other objects go to the query because they may contain slashes.
        """
        router = self.request.app.router
        route = next(it for it in router.routes if getattr(it, "name", None) == name)
        known = getattr(route, "param_convertors", {})
        path = router.url_path_for(name, **{key: params[key] for key in known})
        rest = {
            key: value for key, value in params.items() if key not in known and value is not None
        }
        query = f"?{urlencode(rest, doseq=True)}" if rest else ""
        return f"{self.root}{path}{query}"

    def static(self, name: str) -> str:
        """The address of a static file; it changes with the contents."""
        return f"{self.root}/static/{name}?{digest(name)}"

    def here(self, **changes: Any) -> str:
        """The address of this page with changed parameters; None removes one."""
        pairs = {**dict(self.request.query_params), **changes}
        query = urlencode({key: value for key, value in pairs.items() if value is not None})
        path: str = self.request.scope["path"]
        return f"{path}?{query}" if query else path

    def render(self, template: str, /, *, status: int = 200, **context: Any) -> Response:
        """Respond with a page; its template gets `view` and these values."""
        notices = self._notices()
        text = self.dashboard.templates.get_template(template).render(
            view=self, notices=notices, **context
        )
        response = HTMLResponse(text, status)
        if notices:
            response.delete_cookie(self._notice_cookie, path=self.cookie_path)
        return response

    def redirect(self, url: str, *notices: str, error: str = "") -> Response:
        """Respond to a form: go to a page, which shows the notices once."""
        response = RedirectResponse(url, 303)
        shown = [("done", text) for text in notices] + ([("error", error)] if error else [])
        if shown:
            kept = [(kind, text[:_MOST_NOTICE]) for kind, text in shown[:5]]
            self.set_cookie(
                response, self._notice_cookie, self.dashboard.sessions.sign(NOTICE, kept), 60
            )
        return response

    def back(self, *notices: str, error: str = "", fallback: str = "overview") -> Response:
        """Respond to a form: go to its field `back`, if that is a page of this dashboard."""
        return self.redirect(self.safe(self.form.get("back", ""), fallback), *notices, error=error)

    def safe(self, target: str, fallback: str = "overview") -> str:
        """The target if it is a path below the root, or else the fallback page."""
        is_ours = target.startswith(f"{self.root}/") and not target.startswith("//")
        is_plain = target.isprintable() and "\\" not in target and ".." not in target.split("?")[0]
        return target if is_ours and is_plain else self.url(fallback)

    def confirm(
        self, title: str, lines: Sequence[str], *, button: str, fields: Mapping[str, Any],
        is_dangerous: bool = True, choices: Mapping[str, str] = _NO_CHOICES,
    ) -> Response:  # fmt: skip
        """The page of a confirmation; its form repeats the action with `confirmed=yes`.

        `choices` are fields and labels of boxes; a ticked one sends `yes`.
        """
        return self.render(
            "confirm.html", title=title, lines=lines, button=button,
            fields={key: value for key, value in fields.items() if value is not None},
            is_dangerous=is_dangerous, choices=choices,
        )  # fmt: skip

    @property
    def is_confirmed(self) -> bool:
        """Whether the form is that of `confirm`."""
        return self.form.get("confirmed") == "yes"

    @asynccontextmanager
    async def acting(
        self, action: str, subject: object = "", **details: Any
    ) -> AsyncIterator[Action]:
        """Run an action of this user; see `monitor.acting`."""
        async with acting(
            self.dashboard.writer, action, subject, actor=self.actor, origin=self.address, **details
        ) as act:
            yield act
        self.dashboard.cache.forget()

    async def change(self, action: str, subject: object, statement: str, *args: Any) -> Any:
        """Run one statement, by default with the subject; its value goes into the audit."""
        async with self.acting(action, subject) as act:
            changed = await act.connection.fetchval(
                ours(act.connection, statement), *(args or (subject,))
            )
            act.details["changed"] = changed
        return changed

    def set_cookie(self, response: Response, name: str, value: str, seconds: int) -> None:
        """Set a cookie that scripts and other sites cannot read."""
        response.set_cookie(
            name, value, max_age=seconds, path=self.cookie_path, httponly=True,
            samesite="strict", secure=self.request.url.scheme == "https",
        )  # fmt: skip

    @property
    def theme(self) -> str:
        """`light`, `dark` or `system`."""
        found = self.request.cookies.get("notifyq_theme", "")
        return found if found in {"light", "dark"} else "system"

    @property
    def _notice_cookie(self) -> str:
        return f"{self.dashboard.sessions.cookie}_notice"

    def _notices(self) -> list[tuple[str, str]]:
        signed = self.request.cookies.get(self._notice_cookie)
        return self.dashboard.sessions.unsign(NOTICE, signed) or []


async def read_form(request: Request) -> Form:
    """The fields of a form, without files."""
    form = await request.form(max_fields=2000, max_files=0)
    return ImmutableMultiDict(
        [(key, value) for key, value in form.multi_items() if isinstance(value, str)]
    )
