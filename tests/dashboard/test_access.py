"""Who may enter: passwords, sessions, how often one may try; and forged requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from dashboard.conftest import BASE, Browser, Open
from notifyq.dashboard import User, Users, create_app, hash_password
from notifyq.dashboard.access import LIFE, Attempts, Session, Sessions, write_user
from notifyq.dashboard.serve import check_place
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from database import Connection

PASSWORD = "correct horse"
PAGES = ["/", "/queues", "/queue?name=default", "/health", "/audit", "/live"]


@pytest.fixture(scope="session")
def hashed() -> str:
    return hash_password(PASSWORD, cost=2**14)


@pytest.fixture
def users(hashed: str) -> Users:
    return Users({User("ann"): hashed, User("guest", may_write=False): hashed})


@pytest.fixture
async def guarded(open_dashboard: Open, users: Users) -> Browser:
    return await open_dashboard(users=users, allow_writes=True)


async def log_in(browser: Browser, name: str = "ann", password: str = PASSWORD, **more: Any) -> Any:
    return await browser.send("/login", name=name, password=password, **more)


@pytest.mark.parametrize("path", PAGES)
async def test_without_a_login_no_page_is_shown(guarded: Browser, path: str) -> None:
    answer = await guarded.get(path)
    assert answer.status_code in {303, 401}
    assert "default" not in answer.text
    if answer.status_code == 303:
        assert answer.headers["location"].startswith("/login?back=")


async def test_one_who_knows_the_password_enters_where_he_wanted(guarded: Browser) -> None:
    answer = await log_in(guarded, back="/queue?name=default")
    assert answer.headers["location"] == "/queue?name=default"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # it came by http
    assert "Log out" in await guarded.text("/queues")


async def test_over_https_cookies_are_for_https(guarded: Browser) -> None:
    answer = await guarded.get("https://localhost/login")
    assert "Secure" in answer.headers["set-cookie"]


async def test_a_login_is_not_a_way_to_another_site(guarded: Browser) -> None:
    for back in ("//evil", "https://evil", "/\\evil", "/../..", "\n/a", ""):
        answer = await log_in(guarded, back=back)
        assert answer.headers["location"] == "/"


async def test_after_five_wrong_passwords_one_waits(guarded: Browser) -> None:
    for name in ("ann", "nobody", "ann", "ann", "ann"):
        answer = await log_in(guarded, name, "wrong")
        assert answer.status_code == 401
        assert "That is not right." in answer.text
    answer = await log_in(guarded)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 300


def test_attempts_are_forgotten_after_a_while() -> None:
    attempts = Attempts(most=2, seconds=60)
    attempts.fail("a")
    attempts.fail("a")
    assert 59 < attempts.wait("a") <= 60
    assert attempts.wait("b") == 0
    attempts._failed["a"] = [time.monotonic() - 61] * 2
    assert attempts.wait("a") == 0
    attempts.fail("a")
    attempts.clear("a")
    assert not attempts._failed


async def test_who_logs_out_is_out_and_so_is_a_copy_of_the_cookie(guarded: Browser) -> None:
    await log_in(guarded)
    copied = dict(guarded.client.cookies)
    assert (await guarded.send("/logout")).status_code == 303
    assert (await guarded.get("/queues")).status_code == 303
    guarded.client.cookies.update(copied)
    assert (await guarded.get("/queues")).status_code == 303


async def test_a_user_that_may_only_read_writes_nothing(
    guarded: Browser, connection: Connection
) -> None:
    await log_in(guarded, "guest")
    assert "/queues/pause" not in await guarded.text("/queues")
    answer = await guarded.send("/queues/pause", name="default")
    assert answer.status_code == 403
    assert not await connection.fetchval("select paused from messages.queue")


async def test_the_audit_has_who_was_logged_in(guarded: Browser, connection: Connection) -> None:
    await log_in(guarded)
    await guarded.act("/queues/pause", name="default", back="/queues")
    row = await connection.fetchrow("select actor, origin from messages.audit")
    assert row is not None
    assert tuple(row) == ("ann", "127.0.0.1")


async def test_an_application_around_it_may_say_who_it_is(
    open_dashboard: Open, connection: Connection
) -> None:
    def authenticate(request: Any) -> User | None:
        name = request.headers.get("x-user")
        return User(name, may_write=name == "ann") if name else None

    browser = await open_dashboard(authenticate=authenticate, allow_writes=True)
    assert (await browser.get("/queues")).status_code == 403
    browser.client.headers["x-user"] = "ann"
    await browser.act("/queues/pause", name="default", back="/queues")
    assert await connection.fetchval("select actor from messages.audit") == "ann"
    browser.client.headers["x-user"] = "bob"
    assert (await browser.send("/queues/resume", name="default")).status_code == 403


FORGED: dict[str, dict[str, Any]] = {
    "no token": {"data": {"csrf": None}},
    "another's token": {"data": {"csrf": "x" * 43}},
    "not ASCII": {"data": {"csrf": "é"}},
    "another site": {"headers": {"origin": "http://evil"}},
    "another port": {"headers": {"origin": "http://localhost:9090"}},
    "an origin that hides": {"headers": {"origin": "null"}},
    "no origin": {"headers": {"origin": None}},
    "said by the browser": {"headers": {"origin": None, "sec-fetch-site": "cross-site"}},
    "no address": {"headers": {"origin": "http://[::1"}},
}


@pytest.mark.parametrize("what", FORGED)
async def test_a_forged_form_is_refused(writer: Browser, connection: Connection, what: str) -> None:
    forged = FORGED[what]
    data = {"csrf": await writer.token(), "name": "default", **forged.get("data", {})}
    headers = {"origin": BASE, **forged.get("headers", {})}
    answer = await writer.client.post(
        "/queues/pause",
        data={key: value for key, value in data.items() if value is not None},
        headers={key: value for key, value in headers.items() if value is not None},
    )
    assert answer.status_code == 403
    assert not await connection.fetchval("select paused from messages.queue")


async def test_a_browser_that_says_same_origin_is_believed(
    writer: Browser, connection: Connection
) -> None:
    answer = await writer.client.post(
        "/queues/pause",
        data={"csrf": await writer.token(), "name": "default"},
        headers={"sec-fetch-site": "same-origin"},
    )
    assert answer.status_code == 303
    assert await connection.fetchval("select paused from messages.queue")


async def test_an_action_is_not_asked_by_get(writer: Browser, connection: Connection) -> None:
    for path in ("/queues/pause?name=default", "/queues/resume", "/logout"):
        assert (await writer.get(path)).status_code == 405
    assert not await connection.fetchval("select paused from messages.queue")


def test_a_session_is_not_made_up_nor_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, others = Sessions(b"a" * 32), Sessions(b"b" * 32)
    session = sessions.begin("ann.1.2")
    value = sessions.write(session)
    assert sessions.read(value) == session
    assert others.read(value) is None
    assert sessions.cookie != others.cookie
    for forged in ("", "a", "a.b.c", value + "x", "x" + value, sessions.sign("notice", "a.1.ub")):
        assert sessions.read(forged) is None
    old = Session("k", "ann", int(time.time()) - LIFE - 1)
    assert sessions.read(sessions.write(old)) is None


def test_users_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "users"
    write_user(file, User("ann"), PASSWORD)
    write_user(file, User("guest", may_write=False), PASSWORD)
    key = Users.of_file(file).key
    write_user(file, User("ann"), "another password")
    assert file.stat().st_mode & 0o777 == 0o600
    users = Users.of_file(file)
    assert users.key != key  # a changed password ends the sessions
    assert users.check("ann", "another password") == User("ann")
    assert users.check("guest", PASSWORD) == User("guest", may_write=False)
    assert users.check("guest", "wrong") is None
    assert users.only is None


@pytest.mark.parametrize(
    "text", ["", "# nobody\n", "ann", "ann:write:", "ann:admin:scrypt$1$a$b", "ann:write:md5$x"]
)
def test_a_file_that_lets_nobody_in_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="--add-user"):
        Users.of_file(file)


@pytest.mark.parametrize(
    ("name", "password"), [("a:b", PASSWORD), ("", PASSWORD), ("ann", "short")]
)
def test_a_user_that_cannot_be_is_refused(tmp_path: Path, name: str, password: str) -> None:
    with pytest.raises(ConfigurationError):
        write_user(tmp_path / "users", User(name), password)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "ops.example.com"])
def test_off_loopback_it_needs_a_password(host: str) -> None:
    with pytest.raises(ConfigurationError, match="NOTIFYQ_DASHBOARD_PASSWORD"):
        check_place(host, is_guarded=False)
    check_place(host, is_guarded=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_on_loopback_it_needs_none(host: str) -> None:
    check_place(host, is_guarded=False)


async def test_it_must_be_said_who_may_enter(users: Users) -> None:
    with pytest.raises(ConfigurationError, match="who may enter"):
        create_app("postgresql://127.0.0.1/none")
    with pytest.raises(ConfigurationError, match="who may enter"):
        create_app("postgresql://127.0.0.1/none", users=users, open_to_all=True)
