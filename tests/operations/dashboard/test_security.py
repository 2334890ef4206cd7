"""What comes from outside: host names, paths, texts that want to be markup; and what is masked."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from notifyq.operations.dashboard import Masks, Users
from notifyq.operations.masks import HIDDEN, redacted_statement
from notifyq.operations.texts import clean
from operations.dashboard.conftest import BASE, Browser, Open
from support.database import Connect, Connection

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'{{7*7}}"
PAGES = ["/", "/queues", "/queue?name=default", "/health", "/audit", "/login", "/none", "/queue"]


class Markup(HTMLParser):
    """Finds what could run: scripts, handlers, styles and links that are none."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.bad.append(f"{tag} {name}={value}")
            if name in {"href", "src", "action"} and not (value or "").startswith(("/", "#")):
                self.bad.append(f"{tag} {name}={value}")
        if tag in {"script", "img", "iframe", "object", "style", "base"}:
            given = dict(attrs)
            if tag != "script" or not (given.get("src") or "").startswith("/static/"):
                self.bad.append(self.get_starttag_text() or tag)


async def test_texts_of_users_are_escaped(writer: Browser, connection: Connection) -> None:
    await connection.execute("select messages.create_queue($1)", HOSTILE.replace(":", ""))
    await connection.execute(
        "select messages.publish($1, '1'); ".replace("$1", "'default'")
        + "select notifyq.note_audit('x', 'a.b')"
    )
    name = HOSTILE
    await connection.execute(
        "select notifyq.note_audit($1, 'a.b', $1, to_jsonb($1::text), $1)", name
    )
    await writer.act("/queues/pause", name=name, back="/queues")
    pages = [*PAGES, str(httpx.URL("/queue", params={"name": name}))]
    pages += [
        str(
            httpx.URL(
                path,
                params={"queue": name, "search": name, "actor": name, "range": name, "back": name},
            )
        )
        for path in PAGES
    ]
    seen = 0
    for path in pages:
        answer = await writer.get(path)
        assert answer.status_code < 500, path
        assert Markup(answer.text).bad == [], path
        assert "49" not in answer.text or "7*7" not in answer.text.replace("{{7*7}}", "")
        seen += "&lt;script&gt;" in answer.text
    # It was there to be seen, on most of them.
    assert seen > 5


def test_markup_is_found_by_this_test() -> None:
    for text in ("<script>1</script>", "<b onclick=x>", "<p style=x>", "<a href='javascript:x'>"):
        assert Markup(text).bad


async def test_responses_have_security_headers(reader: Browser) -> None:
    for path in (*PAGES, "/static/dashboard.css", "/healthz"):
        headers = (await reader.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        kept = "immutable" if path.startswith("/static") else "no-store"
        assert kept in headers["cache-control"]


async def test_an_unknown_host_name_is_refused(reader: Browser) -> None:
    for host in (
        "evil.example",
        "localhost.evil.example",
        "",
        "127.0.0.1.nip.io",
        "[::2]",
        "10.0.0.1",
    ):
        answer = await reader.get("/queues", headers={"host": host})
        assert answer.status_code == 421
        assert "default" not in answer.text


async def test_known_host_names_are_accepted(reader: Browser) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080"):
        assert (await reader.get("/queues", headers={"host": host})).status_code == 200


async def test_only_static_files_are_served(reader: Browser) -> None:
    for path in ("../application.py", "..%2fapplication.py", "%2e%2e/access.py",
                 "/etc/passwd", "%00", "none"):  # fmt: skip
        answer = await reader.client.get(f"/static/{path}")
        assert answer.status_code in {400, 404}
        assert "import" not in answer.text


async def test_all_addresses_begin_with_the_base_path(open_dashboard: Open) -> None:
    browser = await open_dashboard(base_path="/ops", allow_writes=True)
    # Whether or not the proxy takes it off.
    for path in ("/ops/queues", "/queues"):
        text = await browser.text(path)
        assert 'href="/ops/health"' in text
        assert 'src="/ops/static/dashboard.js' in text
        assert 'href="/queues"' not in text
    answer = await browser.get("/ops/static/dashboard.css")
    assert answer.status_code == 200
    browser.root = "/ops"
    answer = await browser.send("/ops/queues/pause", name="default", back="/ops/queues")
    assert answer.headers["location"] == "/ops/queues"
    assert "Path=/ops" in answer.headers["set-cookie"]


async def test_the_dashboard_can_be_mounted(open_dashboard: Open, connection: Connection) -> None:
    browser = await open_dashboard(allow_writes=True)
    outer = Starlette(routes=[Mount("/admin/queues", browser.app)])
    browser.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(outer), base_url="http://localhost:8080/admin/queues"
    )
    text = await browser.text("/queues")
    assert 'action="/admin/queues/queues/pause"' in text
    answer = await browser.send("/queues/pause", name="default", back="/admin/queues/queues")
    assert answer.headers["location"] == "/admin/queues/queues"
    assert await connection.fetchval("select paused from messages.queue")


async def test_a_form_that_is_too_large_is_refused(writer: Browser) -> None:
    answer = await writer.send("/queues/pause", name="x" * 1_100_000)
    assert answer.status_code == 413


async def test_invalid_numbers_are_refused(reader: Browser) -> None:
    for text in ("x", "1e3", "9" * 30, "٣", "1;drop"):
        answer = await reader.get(str(httpx.URL("/audit", params={"before": text})))
        assert answer.status_code == 400
        assert "before is not a number" in answer.text.lower()


VALUE = {
    "password": "p", "Token": "t", "user": {"token": "u", "name": "ann", "card": {"number": 4}},
    "list": [{"password": ["deep"]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "hidden", "shown"),
    [
        ("password", ["p", "deep"], ["t", "u", "ann"]),
        ("TOKEN", ["t", "u"], ["p", "ann"]),
        ("*.token", ["t", "u"], ["p"]),
        ("user.token", ["u"], ["t", "ann"]),
        ("user.*", ["u", "ann"], ["p"]),
        ("pass*,user.name", ["p", "deep", "ann"], ["u"]),
        ("", [], ["p", "t", "u", "ann", "deep"]),
    ],
)
def test_masks_hide_values_of_matching_keys(
    patterns: str, hidden: list[str], shown: list[str]
) -> None:
    text = Masks.parse(patterns).text(json.dumps(VALUE))
    assert text is not None
    for one in hidden:
        assert f'"{one}"' not in text
    for one in shown:
        assert f'"{one}"' in text
    assert (HIDDEN in text) == bool(hidden)


def test_numbers_are_shown_exactly() -> None:
    text = '{"a": 1.10, "b": 1e400, "c": 123456789012345678901234567890, "d": "1.10"}'
    assert Masks.parse("x").text(text, indent=None) == text
    assert Masks.parse("x").text("9" * 5000) == "9" * 5000


def test_hidden_payloads_are_hidden_completely() -> None:
    masks = Masks.parse(None, all_payloads=True)
    assert masks.text('{"a": 1}') == f'"{HIDDEN}"'
    assert masks.value({"a": 1}) == HIDDEN
    # Too deep to be searched.
    deep = "[" * 100_000 + "]" * 100_000
    assert Masks.parse("a").text(deep) == f'"{HIDDEN}"'


def test_invisible_characters_are_replaced() -> None:
    assert clean("mail\u202eliam\u200b\x00") == "mail\N{REPLACEMENT CHARACTER}liam" + 2 * (
        "\N{REPLACEMENT CHARACTER}"
    )


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("select 1 from t2 where a.b3 = $1", f"select {HIDDEN} from t2 where a.b3 = $1"),
        ("select 'it''s' || x", f"select {HIDDEN} || x"),
        (r"select E'a\'b' || x", f"select {HIDDEN} || x"),
        ('values ($${"card": 4}$$, $j$5$$6$j$, 7.5)', f"values ({HIDDEN}, {HIDDEN}, {HIDDEN})"),
        ('insert into t values (\'{"card": "4000', f"insert into t values ({HIDDEN}"),
        ("select $x$4000", f"select {HIDDEN}"),
    ],
)
def test_literals_of_statements_are_hidden(statement: str, left: str) -> None:
    masks = Masks.parse("card")
    assert redacted_statement(statement, masks) == left
    assert redacted_statement(statement, Masks()) == statement
    assert redacted_statement(None, masks) is None


async def test_health_hides_masked_payloads(open_dashboard: Open, connect: Connect) -> None:
    session = await connect()
    async with session.transaction():
        await session.execute('select pg_current_xact_id(), \'{"card": "4000-1234"}\'')
        open_ = await (await open_dashboard()).text("/health")
        assert "4000-1234" in open_
        masked = await (await open_dashboard(masks=Masks.parse("card"))).text("/health")
        assert f"select pg_current_xact_id(), {HIDDEN}" in masked
        assert "4000" not in masked


def entries(app: Any, method: str) -> list[str]:
    """All addresses that are asked so, with an id where they take one."""
    return [
        route.path.replace("{id:id}", "1").replace("{id}", "1")
        for route in app.router.routes
        if method in (getattr(route, "methods", None) or ())
    ]


async def test_every_page_needs_a_login_and_every_action_a_token(
    open_dashboard: Open, connection: Connection
) -> None:
    browser = await open_dashboard(users=Users.of_password("correct horse"), allow_writes=True)
    actions, pages = entries(browser.app, "POST"), entries(browser.app, "GET")
    assert len(actions) > 15
    assert len(pages) > 12
    for path in set(pages) - {"/login", "/healthz"}:
        answer = await browser.get(path)
        assert answer.status_code in {303, 401}, path
        assert "default" not in answer.text
        assert answer.status_code == 401 or answer.headers["location"].startswith("/login?back=")
    for path in set(actions) - {"/login", "/theme"}:
        assert (await browser.send(path, name="default")).status_code == 401, path
    assert (await browser.send("/login", password="correct horse")).status_code == 303
    for path in actions:
        for sent in ({}, {"csrf": "x" * 43}):
            answer = await browser.client.post(path, data=sent, headers={"origin": BASE})
            assert answer.status_code == 403, path
        answer = await browser.client.post(
            path, data={"csrf": await browser.token()}, headers={"origin": "https://evil.example"}
        )
        assert answer.status_code == 403, path
    assert not await connection.fetchval("select count(*) from messages.audit")


async def test_a_login_replaces_the_session(
    open_dashboard: Open,
) -> None:
    browser = await open_dashboard(users=Users.of_password("correct horse"))
    before_token = await browser.token()
    before = dict(browser.client.cookies)
    await browser.send("/login", password="correct horse")
    inside = dict(browser.client.cookies)
    assert await browser.token() != before_token
    browser.client.cookies.clear()
    browser.client.cookies.update(before)
    assert (await browser.get("/queues")).status_code == 303
    # One that logs in anew leaves no session behind.
    browser.client.cookies.clear()
    browser.client.cookies.update(inside)
    await browser.send("/login", password="correct horse")
    browser.client.cookies.clear()
    browser.client.cookies.update(inside)
    assert (await browser.get("/queues")).status_code == 303


async def test_a_text_that_the_database_refuses_is_a_client_error(
    reader: Browser,
) -> None:
    for path in ("/messages", "/dead", "/audit", "/queue", "/"):
        for name in ("name", "queue", "actor", "action", "type", "error", "range"):
            answer = await reader.get(str(httpx.URL(path, params={name: "a\x00b"})))
            assert answer.status_code < 500, (path, name)
            assert "is away" not in answer.text.partition("<main")[2].partition("hidden></p>")[2]


async def test_headers_cannot_be_injected(reader: Browser) -> None:
    for path in ("/login?back=%0d%0aset-cookie:%20a=b", "/queue?name=%0d%0aset-cookie:%20a=b"):
        answer = await reader.get(path)
        assert "a=b" not in str(answer.headers.get_list("set-cookie"))
    answer = await reader.send("/theme", back="/queues\r\nset-cookie: a=b")
    assert answer.headers["location"] == "/"
    assert "a=b" not in str(answer.headers.get_list("set-cookie"))
