"""Access: passwords, sessions, the limit of failed logins, and forged requests."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher

from notifyq.errors import ConfigurationError
from notifyq.operations.dashboard import User, Users, create_app
from notifyq.operations.dashboard.attempts import Attempts
from notifyq.operations.dashboard.serve import check_host
from notifyq.operations.dashboard.sessions import LIFE, Session, Sessions
from notifyq.operations.dashboard.users import write_user
from operations.dashboard.conftest import BASE, Browser, Open
from support.database import Connection

PASSWORD = "correct horse"


@pytest.fixture(scope="session")
def hashed() -> str:
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)


@pytest.fixture
def users(hashed: str) -> Users:
    return Users({User("ann"): hashed, User("guest", may_write=False): hashed})


@pytest.fixture
async def guarded(open_dashboard: Open, users: Users) -> Browser:
    return await open_dashboard(users=users, allow_writes=True)


async def log_in(browser: Browser, name: str = "ann", password: str = PASSWORD, **more: Any) -> Any:
    return await browser.send("/login", name=name, password=password, **more)


async def test_a_login_leads_to_the_wanted_page(guarded: Browser) -> None:
    answer = await log_in(guarded, back="/queue?name=default")
    assert answer.headers["location"] == "/queue?name=default"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # it came by http
    assert "Log out" in await guarded.text("/queues")


async def test_cookies_are_secure_over_https(guarded: Browser) -> None:
    answer = await guarded.get("https://localhost/login")
    assert "Secure" in answer.headers["set-cookie"]


async def test_a_login_does_not_redirect_to_another_site(guarded: Browser) -> None:
    for back in ("//evil", "https://evil", "/\\evil", "/../..", "\n/a", ""):
        answer = await log_in(guarded, back=back)
        assert answer.headers["location"] == "/"


async def test_five_wrong_passwords_delay_the_next_attempt(guarded: Browser) -> None:
    for name in ("ann", "nobody", "ann", "ann", "ann"):
        answer = await log_in(guarded, name, "wrong")
        assert answer.status_code == 401
        assert "The name or the password is wrong." in answer.text
    answer = await log_in(guarded)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 300


def test_failed_attempts_expire() -> None:
    attempts = Attempts(most=2, seconds=60)
    attempts.fail("a")
    attempts.fail("a")
    assert 59 < attempts.wait("a") <= 60
    assert attempts.wait("b") == 0
    attempts._failed = [(it[0] - 61, *it[1:]) for it in attempts._failed]
    assert attempts.wait("a") == 0
    attempts.fail("a")
    attempts.clear("a")
    assert not attempts._failed


def test_unknown_clients_share_a_growing_delay() -> None:
    attempts = Attempts(free=4)
    waits = []
    for number in range(12):
        address = f"10.0.0.{number}"
        waits.append(attempts.wait(address))
        attempts.fail(address, "ann")
    assert waits[:4] == [0] * 4
    assert waits[4:8] == pytest.approx([1, 2, 4, 8], abs=0.1)
    assert attempts.wait("192.0.2.1") == pytest.approx(60, abs=0.1)
    # An attacker delays neither this machine nor a known browser.
    assert attempts.wait("127.0.0.1") == 0
    assert attempts.wait("192.0.2.1", "kept") == 0
    # It is over an hour after it has ended.
    attempts._failed = [(it[0] - 3600, *it[1:]) for it in attempts._failed]
    assert attempts.wait("192.0.2.1") == 0


@pytest.mark.parametrize(
    ("one", "other", "is_one"),
    [("127.0.0.1", "127.9.8.7", True), ("127.0.0.1", "::1", True),
     ("127.0.0.1", "::ffff:127.0.0.1", True),
     ("2001:db8::1", "2001:db8::2:3", True), ("2001:db8::1", "2001:db8:0:1::1", False),
     ("10.0.0.1", "::ffff:10.0.0.1", True), ("10.0.0.1", "10.0.0.2", False)],
)  # fmt: skip
def test_addresses_of_one_network_count_as_one_client(one: str, other: str, is_one: bool) -> None:
    attempts = Attempts(most=1)
    attempts.fail(one)
    assert (attempts.wait(other) > 0) == is_one


def test_a_login_does_not_reset_attempts_at_other_names() -> None:
    attempts = Attempts(most=3)
    tried = 0
    while tried < 20 and not attempts.wait("10.0.0.1"):
        attempts.fail("10.0.0.1", "guest")
        attempts.clear("10.0.0.1", "guest")
        attempts.fail("10.0.0.1", "admin")
        tried += 1
    assert tried == 3


async def test_a_known_browser_is_not_delayed_by_other_clients(guarded: Browser) -> None:
    await log_in(guarded)
    known = {name: it for name, it in guarded.client.cookies.items() if name.endswith("_known")}
    assert len(known) == 1
    for _ in range(5):
        guarded.client.cookies.clear()
        assert (await log_in(guarded, password="wrong")).status_code == 401
    assert (await log_in(guarded)).status_code == 429
    guarded.client.cookies.update(known)
    # Only for its own user.
    assert (await log_in(guarded, "guest")).status_code == 429
    assert (await log_in(guarded)).status_code == 303
    # It has the bound of an address.
    for _ in range(5):
        assert (await log_in(guarded, password="wrong")).status_code == 401
    assert (await log_in(guarded)).status_code == 429


async def test_a_password_hash_does_not_forge_a_session(open_dashboard: Open, users: Users) -> None:
    """An attacker with the file of hashes knows everything that `users` knows."""
    browser = await open_dashboard(users=users)
    name = browser.app.state.dashboard.sessions.cookie
    hashes = "\n".join(f"{name}:{it}" for name, it in sorted(users._hashes.items()))
    for secret in (
        hashlib.sha256(hashes.encode()).digest(),
        hashes,
        str(users._hashes["ann"]),
    ):
        forger = Sessions(secret)
        forged = forger.write(forger.begin("ann", users._hashes["ann"]))
        browser.client.cookies = {name: forged, forger.cookie: forged}
        assert (await browser.get("/queues")).status_code == 303


async def test_processes_with_one_secret_share_sessions(open_dashboard: Open) -> None:
    secret = "one secret for all of our processes"
    one = await open_dashboard(users=Users.of_password(PASSWORD), secret=secret)
    other = await open_dashboard(users=Users.of_password(PASSWORD), secret=secret)
    apart = await open_dashboard(users=Users.of_password(PASSWORD))
    changed = await open_dashboard(users=Users.of_password("another password"), secret=secret)
    await log_in(one, "operator")
    cookies = dict(one.client.cookies)
    for browser, status in ((one, 200), (other, 200), (apart, 303), (changed, 303)):
        browser.client.cookies.update(cookies)
        assert (await browser.get("/queues")).status_code == status


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="32 characters"):
        Sessions("short")


async def test_a_changed_password_ends_sessions(open_dashboard: Open, tmp_path: Path) -> None:
    file = tmp_path / "users"
    write_user(file, User("ann"), PASSWORD)
    write_user(file, User("bob"), PASSWORD)
    ann = await open_dashboard(users=Users.of_file(file), secret="s" * 32)
    bob = another(ann)
    await log_in(ann)
    await log_in(bob, "bob")
    write_user(file, User("ann"), "another password")
    assert (await ann.get("/queues")).status_code == 303
    assert (await bob.get("/queues")).status_code == 200
    assert (await log_in(ann)).status_code == 401
    assert (await log_in(ann, password="another password")).status_code == 303
    # A removed user is logged out; an empty file admits nobody.
    file.write_text(file.read_text().replace("bob:", "eve:"))
    assert (await bob.get("/queues")).status_code == 303
    file.unlink()
    assert (await ann.get("/queues")).status_code == 303
    assert (await log_in(ann, password="another password")).status_code == 401


def test_a_changed_password_file_takes_effect(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("correct horse\n")
    users, sessions = Users.of_password_file(file), Sessions()
    session = sessions.begin("operator", users.credential("operator") or "")
    assert sessions.user_of(session, users) == User("operator")
    file.write_text("another horse\n")
    assert sessions.user_of(session, users) is None
    assert users.check("operator", "correct horse") is None
    assert users.check("operator", "another horse") == User("operator")


@pytest.mark.parametrize("read", [Users.of_file, Users.of_password_file])
def test_a_file_that_is_no_text_lets_nobody_in(
    tmp_path: Path, read: Callable[[Path], Users]
) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"\xe9")
    with pytest.raises(ConfigurationError, match="is not text in UTF-8"):
        read(file)
    write_user(tmp_path / "good", User("operator"), PASSWORD)
    file.write_text(PASSWORD if read == Users.of_password_file else (tmp_path / "good").read_text())
    users = read(file)
    assert users.find("operator") == User("operator")
    file.write_bytes(b"\xe9")
    assert users.find("operator") is None


def another(browser: Browser) -> Browser:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(browser.app), base_url=BASE)
    return Browser(client, browser.app)


async def _logged_out(browser: Browser, _: Path) -> None:
    other = Browser(
        httpx.AsyncClient(transport=browser.client._transport, base_url=BASE), browser.app
    )
    other.client.cookies.update(browser.client.cookies)
    assert (await other.send("/logout")).status_code == 303


async def _expired(browser: Browser, _: Path) -> None:
    at = time.time() + LIFE + 1
    browser.app.state.clock.setattr("notifyq.operations.dashboard.sessions.time.time", lambda: at)


async def _changed(_: Browser, file: Path) -> None:
    write_user(file, User("ann"), "another password")


@pytest.mark.parametrize("end", [_logged_out, _expired, _changed])
async def test_live_values_end_with_the_session(
    open_dashboard: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    file = tmp_path / "users"
    write_user(file, User("ann"), PASSWORD)
    browser = await open_dashboard(users=Users.of_file(file))
    browser.app.state.clock = monkeypatch
    await log_in(browser)
    headers = {"cookie": "; ".join(f"{name}={it}" for name, it in browser.client.cookies.items())}
    async with stream(browser.app, "/live", headers) as pieces:
        while not (await pieces.get() or b"").startswith(b"data:"):
            pass
        await end(browser, file)
        async with asyncio.timeout(10):
            while await pieces.get() is not None:
                pass


async def test_live_values_end_when_the_surrounding_application_refuses_the_user(
    open_dashboard: Open,
) -> None:
    inside = [User("ann")]
    browser = await open_dashboard(authenticate=lambda _: inside[0] if inside else None)
    async with stream(browser.app, "/live", {}) as pieces:
        assert await pieces.get()
        inside.clear()
        async with asyncio.timeout(10):
            while await pieces.get() is not None:
                pass


async def test_a_head_request_listens_to_no_live_values(open_dashboard: Open) -> None:
    browser = await open_dashboard()
    async with asyncio.timeout(10):
        answer = await browser.client.head("/live")
    assert answer.headers["content-type"].startswith("text/event-stream")


@asynccontextmanager
async def stream(app: Any, path: str, headers: dict[str, str]) -> AsyncIterator[asyncio.Queue[Any]]:
    """The pieces of a long response, and None at its end."""
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    gone = asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message.get("body"):
            pieces.put_nowait(message["body"])

    async def read() -> None:
        await app(scope, receive, send)
        pieces.put_nowait(None)

    given = {"host": "localhost:8080", **headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "GET", "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "",
        "client": ("127.0.0.1", 5), "server": ("localhost", 8080),
        "headers": [(name.encode(), it.encode()) for name, it in given.items()],
    }  # fmt: skip
    task = asyncio.create_task(read())
    try:
        yield pieces
    finally:
        gone.set()
        await task


async def test_a_logout_also_ends_copies_of_the_cookie(guarded: Browser) -> None:
    await log_in(guarded)
    copied = dict(guarded.client.cookies)
    assert (await guarded.send("/logout")).status_code == 303
    assert (await guarded.get("/queues")).status_code == 303
    guarded.client.cookies.update(copied)
    assert (await guarded.get("/queues")).status_code == 303


async def test_a_user_without_write_access_cannot_change_anything(
    guarded: Browser, connection: Connection
) -> None:
    await log_in(guarded, "guest")
    assert "/queues/pause" not in await guarded.text("/queues")
    answer = await guarded.send("/queues/pause", name="default")
    assert answer.status_code == 403
    assert not await connection.fetchval("select paused from messages.queue")


async def test_the_audit_names_the_user(guarded: Browser, connection: Connection) -> None:
    await log_in(guarded)
    await guarded.act("/queues/pause", name="default", back="/queues")
    row = await connection.fetchrow("select actor, origin from messages.audit")
    assert row is not None
    assert tuple(row) == ("ann", "127.0.0.1")


async def test_the_surrounding_application_may_set_the_user(
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
    "sent by the browser": {"headers": {"origin": None, "sec-fetch-site": "cross-site"}},
    "without TLS, of a page with it": {"url": "https://localhost:8080"},
    "no address": {"headers": {"origin": "http://[::1"}},
}


async def test_a_forged_form_is_refused(writer: Browser, connection: Connection) -> None:
    for what in FORGED:
        forged = FORGED[what]
        data = {"csrf": await writer.token(), "name": "default", **forged.get("data", {})}
        headers = {"origin": BASE, **forged.get("headers", {})}
        answer = await writer.client.post(
            f"{forged.get('url', '')}/queues/pause",
            data={key: value for key, value in data.items() if value is not None},
            headers={key: value for key, value in headers.items() if value is not None},
        )
        assert answer.status_code == 403
        assert not await connection.fetchval("select paused from messages.queue")


async def test_a_form_with_sec_fetch_site_same_origin_is_accepted(
    writer: Browser, connection: Connection
) -> None:
    answer = await writer.client.post(
        "/queues/pause",
        data={"csrf": await writer.token(), "name": "default"},
        headers={"sec-fetch-site": "same-origin"},
    )
    assert answer.status_code == 303
    assert await connection.fetchval("select paused from messages.queue")


async def test_actions_need_post(writer: Browser, connection: Connection) -> None:
    for path in ("/queues/pause?name=default", "/queues/resume", "/logout"):
        assert (await writer.get(path)).status_code == 405
    assert not await connection.fetchval("select paused from messages.queue")


def test_sessions_cannot_be_forged_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, others = Sessions(b"a" * 32), Sessions(b"b" * 32)
    session = sessions.begin("ann.1.2", "hash")
    value = sessions.write(session)
    assert sessions.read(value) == session
    assert others.read(value) is None
    assert sessions.cookie != others.cookie
    for forged in ("", "a", "a.b.c", value + "x", "x" + value, sessions.sign("notice", "a.1.ub")):
        assert sessions.read(forged) is None
    old = Session("k", "ann", int(time.time()) - LIFE - 1)
    assert sessions.read(sessions.write(old)) is None


def test_written_users_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "users"
    write_user(file, User("ann"), PASSWORD)
    write_user(file, User("guest", may_write=False), PASSWORD)
    write_user(file, User("ann"), "another password")
    assert file.stat().st_mode & 0o777 == 0o600
    users = Users.of_file(file)
    assert users.check("ann", "another password") == User("ann")
    assert users.check("guest", PASSWORD) == User("guest", may_write=False)
    assert users.check("guest", "wrong") is None
    assert users.only is None


@pytest.mark.parametrize(
    "text",
    [
        "", "# nobody\n", "ann", "ann:write:", "ann:admin:$argon2id$x", "ann:read:$argon2id$x",
        "ann:read:$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHQ$\N{LATIN SMALL LETTER E WITH ACUTE}",
    ],
)  # fmt: skip
def test_a_file_without_valid_users_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="--add-user"):
        Users.of_file(file)


@pytest.mark.parametrize(
    ("name", "password"), [("a:b", PASSWORD), ("", PASSWORD), ("ann", "short")]
)
def test_an_invalid_user_name_is_refused(tmp_path: Path, name: str, password: str) -> None:
    with pytest.raises(ConfigurationError):
        write_user(tmp_path / "users", User(name), password)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "ops.example.com"])
def test_other_addresses_than_loopback_need_a_password(host: str) -> None:
    with pytest.raises(ConfigurationError, match="NOTIFYQ_DASHBOARD_PASSWORD"):
        check_host(host, is_guarded=False)
    check_host(host, is_guarded=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_password(host: str) -> None:
    check_host(host, is_guarded=False)


async def test_the_access_must_be_set(users: Users) -> None:
    with pytest.raises(ConfigurationError, match="set the access"):
        create_app("postgresql://127.0.0.1/none")
    with pytest.raises(ConfigurationError, match="set the access"):
        create_app("postgresql://127.0.0.1/none", users=users, open_to_all=True)
