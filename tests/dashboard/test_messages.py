"""The pages of messages: search, one message, and what is done to it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from dashboard.conftest import die
from database import archived, claim_one, live, make_due, publish, rows, value
from notifyq.dashboard import Masks

if TYPE_CHECKING:
    from dashboard.conftest import Browser, Open
    from database import Connection

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>"
SECRET = {"user": {"name": "ann", "password": "hunter22"}, "card": {"number": "4000123"}}


def listed(page: str) -> list[int]:
    """The messages that a list has."""
    return [int(it) for it in re.findall(r'<th scope="row"><a href="/messages/(\d+)">', page)]


async def test_messages_are_found_and_shown(reader: Browser, connection: Connection) -> None:
    (dead,) = await die(connection, details="Timeout after 5 s")
    waiting = await value(
        connection, "publish", queue="default", message={"amount": 150}, type="order", key="k/1"
    )
    assert listed(await reader.text("/messages")) == [waiting, dead]
    for query, expected in (
        ("state=waiting", [waiting]),
        ("state=dead&error=timeout", [dead]),
        ("queue=none", []),
        ("type=order&key=k%2F1", [waiting]),
        (f"payload={quote('$.amount > 100')}", [waiting]),
        (f"payload={quote('amount = 150')}", [waiting]),
        (f"payload={quote('amount = 151')}", []),
        (f"like={dead}&state=failed", [dead]),
        ("since=2027-01-01", []),
    ):
        assert listed(await reader.text(f"/messages?{query}")) == expected, query
    jump = await reader.get(f"/messages?id={dead}")
    assert (jump.status_code, jump.headers["location"]) == (303, f"/messages/{dead}")
    assert '<form method="post" action="/message' not in await reader.text(f"/messages/{dead}")


async def test_what_cannot_be_meant_is_told(reader: Browser) -> None:
    for query in ("place=x", "since=soon", "id=x", f"payload={quote('$.a ==')}", "state=odd"):
        answer = await reader.get(f"/messages?{query}")
        assert answer.status_code == 400, query
    await reader.text("/messages/77", 404)
    await reader.text("/messages?like=77", 404)


async def test_a_long_list_has_pages(reader: Browser, connection: Connection) -> None:
    ids = await publish(connection, 70)
    page = await reader.text("/messages")
    following = re.search(r'href="([^"]+)" rel="next"', page)
    assert following is not None
    rest = await reader.text(following[1].replace("&amp;", "&"))
    assert [*listed(page), *listed(rest)] == ids[::-1]
    assert 'rel="next"' not in rest


async def test_a_message_has_its_story(reader: Browser, connection: Connection) -> None:
    await value(connection, "create_queue", name="q", max_attempts=2)
    (id_,) = await publish(connection, 1, "q")
    held = await value(connection, "publish", queue="q", message=1, after=[id_])
    for _ in range(2):
        (claimed,) = await rows(connection, "claim", queues=["q"], worker="host-1")
        await connection.execute(
            "select messages.retry($1, $2, '0', 'no luck', 'failed', 'ValueError', 'Trace\nback')",
            id_,
            claimed["lock_token"],
        )
        await make_due(connection, id_)
        await value(connection, "stage_due")
    page = await reader.text(f"/messages/{id_}")
    for text in ("Attempt 1 began", "Attempt 2: failed", "Finished: failed", "Trace\nback"):
        assert text in page
    assert f'href="/messages/{held}"' in page
    assert "Attempts that did not succeed" in page


async def test_each_text_is_shown_as_text(
    reader: Browser, writer: Browser, connection: Connection
) -> None:
    name = f"q {HOSTILE}"
    await value(connection, "create_queue", name=name)
    waiting = await value(
        connection, "publish", queue=name, message={HOSTILE: HOSTILE}, type=HOSTILE, key=HOSTILE,
        headers={HOSTILE: HOSTILE}, dedup_key=HOSTILE,
    )  # fmt: skip
    await rows(connection, "claim", worker=HOSTILE)
    dead = await die(connection, details=HOSTILE)
    for path in (
        "/messages", f"/messages/{waiting}", f"/messages/{dead[0]}", "/dead", "/workers",
        f"/messages?queue={quote(HOSTILE)}&error={quote(HOSTILE)}&state=dead",
    ):  # fmt: skip
        for browser in (reader, writer):
            page = await browser.text(path)
            assert "<script>alert" not in page, path
            assert "<img" not in page, path
    assert "&lt;script&gt;" in await reader.text(f"/messages/{waiting}")


async def test_what_is_hidden_is_hidden_everywhere(
    open_dashboard: Open, connection: Connection
) -> None:
    await value(connection, "publish", queue="default", message=SECRET, headers={"token": "tok99"})
    message = await claim_one(connection)
    await connection.execute(
        "select messages.retry($1, $2, null, $3, 'failed', 'ValueError', $3)",
        message["id"],
        message["lock_token"],
        "ValidationError: input hunter22 of ann, token tok99",
    )
    id_ = message["id"]
    browser = await open_dashboard(masks=Masks.parse("password,token,card.*"))
    for path in ("/messages", f"/messages/{id_}", f"/messages/{id_}/payload", "/dead",
                 "/messages?state=dead"):  # fmt: skip
        page = await browser.text(path)
        assert "hunter22" not in page, path
        assert "tok99" not in page, path
        assert "4000123" not in page, path
    assert "of ann" in await browser.text(f"/messages/{id_}")
    for payload in ('$.user.password starts with "h"', "password = 1", "$.*.* == 1", "$.**.a == 1"):
        await browser.text(f"/messages?payload={quote(payload)}", 403)
    await browser.text(f"/messages?payload={quote('$.user.name == 1')}")
    blind = await open_dashboard(masks=Masks(all_payloads=True))
    for path in ("/messages", f"/messages/{id_}", f"/messages/{id_}/payload", "/dead"):
        page = await blind.text(path)
        assert "ann" not in page.replace("cannot", "").replace("channel", ""), path
        assert "hunter22" not in page, path
    await blind.text(f"/messages?payload={quote('$.user.name == 1')}", 403)


async def test_a_payload_can_be_had_as_a_file(reader: Browser, connection: Connection) -> None:
    long = {"text": "x" * 600_000, "number": 1}
    id_ = await value(connection, "publish", queue="default", message=long)
    assert "Too long for a page" in await reader.text(f"/messages/{id_}")
    answer = await reader.get(f"/messages/{id_}/payload")
    assert answer.json() == long
    assert "attachment" in answer.headers["content-disposition"]


async def test_a_waiting_message_is_cancelled(writer: Browser, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    page = await writer.act("/message/cancel", id=id_, back=f"/messages/{id_}")
    assert f"Cancelled message {id_}." in page
    ((row),) = await archived(connection, id_)
    assert (row["status"], row["details"]) == ("rejected", "cancelled")
    page = await writer.act("/message/cancel", id=id_, back=f"/messages/{id_}")
    assert 'role="alert"' in page
    assert "was not cancelled" in page


async def test_a_scheduled_message_runs_now(writer: Browser, connection: Connection) -> None:
    id_ = await value(connection, "publish", queue="default", message=1, delay=timedelta(days=1))
    assert "Run now" in await writer.text(f"/messages/{id_}")
    assert "is due now" in await writer.act("/message/run-now", id=id_, back=f"/messages/{id_}")
    assert (await claim_one(connection))["id"] == id_
    assert "nothing was changed" in await writer.act("/message/run-now", id=id_, back="/messages")


async def test_a_message_that_waits_for_others_runs_without_them(
    writer: Browser, connection: Connection
) -> None:
    (first,) = await publish(connection, 1)
    held = await value(connection, "publish", queue="default", message=1, after=[first])
    page = await writer.act("/message/unblock", id=held, back=f"/messages/{held}")
    assert "waits for no other message any more" in page
    row = await live(connection, held)
    assert row is not None
    assert row["state"] == "waiting"


async def test_a_lock_is_taken_only_if_it_is_the_one_that_was_seen(
    writer: Browser, connection: Connection
) -> None:
    (id_,) = await publish(connection, 1)
    first = await claim_one(connection)
    asked = await writer.send("/message/release", id=id_, lock_token=first["lock_token"])
    assert (asked.status_code, "handled twice" in asked.text) == (200, True)
    # Meanwhile the worker gave it back, and another one has it.
    await value(connection, "release", id=id_, lock_token=first["lock_token"])
    second = await claim_one(connection, "other")
    sure = {"id": id_, "confirmed": "yes", "back": f"/messages/{id_}"}
    page = await writer.act("/message/release", lock_token=first["lock_token"], **sure)
    assert "was not released" in page
    page = await writer.act("/message/release", lock_token=second["lock_token"], **sure)
    assert "was released" in page
    assert not await value(connection, "finish", id=id_, lock_token=second["lock_token"])


async def test_a_dead_message_is_retried_once(writer: Browser, connection: Connection) -> None:
    (id_,) = await die(connection)
    page = await writer.act("/message/retry", id=id_, back=f"/messages/{id_}")
    again = await connection.fetchval("select message_id from messages.redrive")
    assert f"as {again}." in page
    assert f'It was published again as <a href="/messages/{again}">' in page
    assert "somebody did so before" in await writer.act("/message/retry", id=id_, back="/dead")
    assert await connection.fetchval("select count(*) from messages.message") == 1
    assert f'retry of <a href="/messages/{id_}">' in await writer.text(f"/messages/{again}")


async def test_a_dead_message_is_discarded(writer: Browser, connection: Connection) -> None:
    (id_,) = await die(connection)
    asked = await writer.send("/message/discard", id=id_)
    assert "for good" in asked.text
    assert await archived(connection, id_)
    page = await writer.act("/message/discard", id=id_, confirmed="yes")
    assert f"Deleted dead message {id_}." in page
    assert await archived(connection, id_) == []
    assert "was not deleted" in await writer.act("/message/discard", id=id_, confirmed="yes")


@pytest.mark.parametrize("action", ["cancel", "run-now", "unblock", "release", "retry", "discard"])
async def test_a_form_that_is_forged_or_not_allowed_does_nothing(
    reader: Browser, writer: Browser, connection: Connection, action: str
) -> None:
    (id_,) = await publish(connection, 1)
    fields = {"id": str(id_), "lock_token": "0", "confirmed": "yes"}
    assert (await reader.send(f"/message/{action}", **fields)).status_code == 403
    for headers, token in (
        ({"origin": "http://127.0.0.2:8080"}, await writer.token()),
        ({"origin": "http://localhost:8080"}, "forged"),
    ):
        answer = await writer.client.post(
            f"/message/{action}", data={"csrf": token, **fields}, headers=headers
        )
        assert answer.status_code == 403
    assert (await writer.get(f"/message/{action}")).status_code == 405
    assert await live(connection, id_) is not None
    assert not await connection.fetchval("select count(*) from messages.audit")
