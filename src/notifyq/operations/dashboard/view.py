"""What a page has at hand: its request, the database, who asks, and how it answers."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse

from notifyq.operations.dashboard.access import Session, User
from notifyq.operations.dashboard.cache import Cache
from notifyq.operations.dashboard.settings import DashboardSettings
from notifyq.operations.monitor import acting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import TypeAlias

    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.responses import Response

    from notifyq.database.pool import Database
    from notifyq.operations.dashboard.access import Attempts, Sessions, Users
    from notifyq.operations.dashboard.live import Live
    from notifyq.operations.dashboard.section import Section
    from notifyq.operations.masks import Masks
    from notifyq.operations.monitor import Action

    Form: TypeAlias = ImmutableMultiDict[str, str]

NOTICE = "notice"
_MOST_NOTICE = 1000


@dataclass
class Desk:
    """What all requests share."""

    settings: DashboardSettings
    database: Database
    """For reading: a few connections, and a call that takes long is cancelled."""
    writer: Database
    """For actions, which may wait for locks."""
    templates: Environment
    users: Users | None
    sessions: Sessions
    attempts: Attempts
    sections: Sequence[Section]
    live: Live
    cache: Cache = field(default_factory=Cache)
    """Answers that several pages want within a moment."""
    checked: Any = None
    """What the checks found last."""

    def user_of(self, request: Request, session: Session) -> User | None:
        """Who asks, as of now: a session ends, and a password changes, while a page is open."""
        if self.settings.authenticate is not None:
            return self.settings.authenticate(request)
        return self.sessions.user_of(session, self.users) if self.users else None


class View:
    """One request."""

    def __init__(
        self, request: Request, desk: Desk, session: Session, user: User | None, section: str = ""
    ) -> None:
        self.request = request
        self.desk = desk
        self.session = session
        self.user = user
        self.section = section
        self.form: Form = ImmutableMultiDict()
        """What was sent with an action; `getlist` for fields that come several times."""

    @property
    def database(self) -> Database:
        """The connections for reading."""
        return self.desk.database

    @property
    def masks(self) -> Masks:
        """What is to be hidden of payloads, headers and results."""
        return self.desk.settings.masks

    @property
    def may_write(self) -> bool:
        """Whether who asks may change anything; else no form is shown."""
        is_allowed = self.user.may_write if self.user else self.is_open
        return self.desk.settings.allow_writes and is_allowed

    @property
    def is_open(self) -> bool:
        """Whether nobody needs to log in."""
        return self.desk.users is None and self.desk.settings.authenticate is None

    @property
    def is_inside(self) -> bool:
        """Whether who asks may see more than the entrance."""
        return self.is_open or self.user is not None

    @property
    def is_still_inside(self) -> bool:
        """Whether that is so at this moment: for answers that go on for long."""
        return self.is_open or self.desk.user_of(self.request, self.session) is not None

    @property
    def root(self) -> str:
        """What all paths begin with: empty, or like /notifyq."""
        return str(self.request.scope.get("root_path", ""))

    @property
    def actor(self) -> str:
        """Who acts, for the audit."""
        return self.user.name if self.user else "anonymous"

    @property
    def address(self) -> str:
        """Where the request came from."""
        return self.request.client.host if self.request.client else "unknown"

    @property
    def token(self) -> str:
        """What each form carries as `csrf`."""
        return self.desk.sessions.token(self.session)

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the address, without the blanks around it."""
        return self.request.query_params.get(name, default).strip()

    def number(self, name: str, default: int | None = None) -> int | None:
        """A parameter that is a number of PostgreSQL's bigint; 400 for anything else."""
        text = self.query(name)
        if not text:
            return default
        return self.integer(text, name)

    @staticmethod
    def integer(text: str, name: str = "id") -> int:
        """Read a bigint of a form or an address; 400 for anything else."""
        sign = text.removeprefix("-")
        if not (sign.isascii() and sign.isdigit() and len(sign) < 20):
            raise HTTPException(400, f"{name} is not a number")
        if not -(2**63) <= (number := int(text)) < 2**63:
            raise HTTPException(400, f"{name} is not a number")
        return number

    def url(self, name: str, /, **params: Any) -> str:
        """The path of a page by its name; what is not in the path goes to the query, None nowhere.

        Names of queues, streams and others go to the query: they may have slashes.
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
        """The path of a file of ours; it changes with its contents."""
        digest = self.desk.templates.globals["digest"]
        assert callable(digest)  # noqa: S101  set by us, see templating
        return f"{self.root}/static/{name}?{digest(name)}"

    def here(self, **changes: Any) -> str:
        """The address of this page with other parameters; None takes one away."""
        pairs = {**dict(self.request.query_params), **changes}
        query = urlencode({key: value for key, value in pairs.items() if value is not None})
        path: str = self.request.scope["path"]
        return f"{path}?{query}" if query else path

    def render(self, template: str, /, *, status: int = 200, **context: Any) -> Response:
        """A page; templates have `view` and what is given here."""
        notices = self._notices()
        text = self.desk.templates.get_template(template).render(
            view=self, notices=notices, **context
        )
        response = HTMLResponse(text, status)
        if notices:
            response.delete_cookie(self._notice_cookie, path=self.cookie_path)
        return response

    def redirect(self, url: str, *notices: str, error: str = "") -> Response:
        """Answer a form: go to a page, which shows the notices once."""
        response = RedirectResponse(url, 303)
        said = [("done", text) for text in notices] + ([("error", error)] if error else [])
        if said:
            text = json.dumps([(kind, text[:_MOST_NOTICE]) for kind, text in said[:5]])
            value = base64.urlsafe_b64encode(text.encode()).decode()
            self.set_cookie(
                response, self._notice_cookie, self.desk.sessions.sign(NOTICE, value), 60
            )
        return response

    def back(self, *notices: str, error: str = "", fallback: str = "overview") -> Response:
        """Answer a form: go to where its field `back` says, if that is a page of ours."""
        return self.redirect(self.safe(self.form.get("back", ""), fallback), *notices, error=error)

    def safe(self, target: str, fallback: str = "overview") -> str:
        """The target if it is a path below our root, else the page named."""
        is_ours = target.startswith(f"{self.root}/") and not target.startswith("//")
        is_plain = target.isprintable() and "\\" not in target and ".." not in target.split("?")[0]
        return target if is_ours and is_plain else self.url(fallback)

    def confirm(
        self, title: str, lines: Sequence[str], *, action: str, button: str,
        fields: Mapping[str, Any], is_dangerous: bool = True,
    ) -> Response:  # fmt: skip
        """Ask before something large is done; the form it shows also has `confirmed=yes`."""
        return self.render(
            "confirm.html", title=title, lines=lines, action=action, button=button,
            fields={key: value for key, value in fields.items() if value is not None},
            is_dangerous=is_dangerous,
        )  # fmt: skip

    @property
    def is_confirmed(self) -> bool:
        """Whether the form was that of `confirm`."""
        return self.form.get("confirmed") == "yes"

    @asynccontextmanager
    async def acting(
        self, action: str, subject: object = "", **details: Any
    ) -> AsyncIterator[Action]:
        """Do something in the name of who asks, as `monitor.acting` does."""
        async with acting(
            self.desk.writer, action, subject, actor=self.actor, origin=self.address, **details
        ) as act:
            yield act
        self.desk.cache.forget()

    async def change(self, action: str, subject: object, statement: str, *args: Any) -> Any:
        """Make one call that changes something, and return what it says; the audit has that, too.

        Without arguments it is called with the subject.
        """
        async with self.acting(action, subject) as act:
            changed = await act.connection.fetchval(statement, *(args or (subject,)))
            act.details["changed"] = changed
        return changed

    def set_cookie(self, response: Response, name: str, value: str, seconds: int) -> None:
        """Have the browser keep a value for us and for nobody else."""
        response.set_cookie(
            name, value, max_age=seconds, path=self.cookie_path, httponly=True,
            samesite="strict", secure=self.request.url.scheme == "https",
        )  # fmt: skip

    @property
    def cookie_path(self) -> str:
        """Below which path cookies are sent."""
        return self.root or "/"

    @property
    def theme(self) -> str:
        """`light`, `dark`, or what the system says."""
        found = self.request.cookies.get("notifyq_theme", "")
        return found if found in {"light", "dark"} else "system"

    @property
    def _notice_cookie(self) -> str:
        return f"{self.desk.sessions.cookie}_notice"

    def _notices(self) -> list[tuple[str, str]]:
        signed = self.request.cookies.get(self._notice_cookie, "")
        value = self.desk.sessions.unsign(NOTICE, signed)
        if value is None:
            return []
        found: list[tuple[str, str]] = json.loads(base64.urlsafe_b64decode(value))
        return found


async def read_form(request: Request) -> Form:
    """The fields of a form, without files."""
    form = await request.form(max_fields=2000, max_files=0)
    return ImmutableMultiDict(
        [(key, value) for key, value in form.multi_items() if isinstance(value, str)]
    )
