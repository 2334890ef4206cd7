"""The pages of messages: search, one message, and what is done to it."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from markupsafe import escape

from notifyq.database.encryption.envelopes import Keys
from notifyq.operations.dashboard import Masks, User
from operations.dashboard.conftest import Browser, Open, make_dead
from support.database import (
    Connection,
    archived,
    claim_one,
    live,
    lock_of,
    make_due,
    publish,
    rows,
    value,
)

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>"
SECRET = {"user": {"name": "ann", "password": "hunter22"}, "card": {"number": "4000123"}}


def listed(page: str) -> list[int]:
    """The messages that a list has."""
    return [int(it) for it in re.findall(r'<th scope="row"><a href="/messages/(\d+)">', page)]


async def test_messages_are_found(reader: Browser, connection: Connection) -> None:
    (dead,) = await make_dead(connection, details="Timeout after 5 s")
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


async def test_a_wrong_condition_keeps_the_input_and_shows_an_error(
    reader: Browser, connection: Connection
) -> None:
    await publish(connection, 1)
    for query, kept, error in (
        ("position=x", "", "position is invalid"),
        ("since=soon", "soon", "since is not an instant"),
        ("id=x", 'name="id" value="x"', "id is not a number"),
        ("payload=$.a ==", "$.a ==", "cannot be understood"),
        ("payload=amount >", "amount &gt;", "a value is missing"),
        ("payload=customer", 'value="customer"', "a comparison is missing"),
        ("payload=name ~ '('", "name ~ &#39;(&#39;", "cannot be understood"),
        ("payload=a = '\x00'", "", "cannot be understood"),
        ("queue=\x00", "", ""),
        ("state=odd", "", "no state"),
        ("like=77", "", "does not exist any more"),
    ):
        answer = await reader.get(
            str(httpx.URL("/messages", params=f"type=typed&{quote(query, '=&')}"))
        )
        assert answer.status_code == (404 if query == "like=77" else 400), (query, answer.text)
        assert '<form method="get" action="/messages"' in answer.text, query
        assert 'name="type" value="typed"' in answer.text
        assert kept in answer.text, query
        shown = re.search(r'role="alert" id="problem">([^<]*)<', answer.text)
        assert shown is not None, query
        assert error.lower() in shown[1].lower(), query
        assert not listed(answer.text)
        assert "No message matches" not in answer.text
    for query in ("since=soon", "until=x", "position=1", "queue=%00"):
        answer = await reader.get(f"/dead?type=typed&{query}")
        assert answer.status_code == 400, query
        assert 'role="alert"' in answer.text
        assert 'name="type" value="typed"' in answer.text
    await reader.text("/messages/77", 404)


PAYLOADS: list[object] = [
    {"customer": "x", "amount": 50, "user": {"id": 7, "name": "Ann Smith"}},
    {"customer": "y", "amount": 51.5, "user": {"id": "7"}, "paid": True},
    {"customer": "it's", "amount": "60", "items": [{"price": 5}, {"price": 10}], "odd name": None},
    "x",
]


CONDITIONS: list[tuple[str, list[int]]] = [
    ("customer = 'x'", [0]), ("customer='x'", [0]), ('customer = "x"', [0]),
    ("customer = x", [0]),
    ("customer == 'x'", [0]), ("customer: x", [0]), ("payload->>'customer' = 'x'", [0]),
    ("$.customer = 'x'", [0]), ("$.customer == 'it''s'", [2]), ("customer = 'it''s'", [2]),
    ("customer = X", []), ("customer <> 'x'", [1, 2]), ("customer != x", [1, 2]),
    ("not customer = 'x'", [1, 2, 3]), ("customer in ('x', 'y')", [0, 1]),
    ("customer not in (x, y)", [2, 3]), ("customer like 'i%'", [2]),
    ("customer ilike 'I%S'", [2]),
    ("customer ~ '^[xy]$'", [0, 1]), ("customer !~ '^[xy]$'", [2, 3]),
    ("amount > 50", [1]), ("amount >= 50", [0, 1]), ("amount<51", [0]), ("amount = 60", [2]),
    ("amount = '50'", [0]), ("amount != 60", [0, 1]), ("amount > 50 and paid = true", [1]),
    ("amount = 50 or amount = 60", [0, 2]),
    ("(amount = 50 or paid = true) and user.id = 7", [0, 1]),
    ("user.id = 7", [0, 1]), ("user.name = Ann Smith", [0]),
    ("user -> 'name' = 'Ann Smith'", [0]),
    ("items[*].price > 9", [2]), ("items.price > 9", [2]), ("items[0].price > 9", []),
    ('"odd name" is null', [0, 1, 2, 3]), ("customer is not null", [0, 1, 2]),
    ('{"customer": "x", "user": {"id": 7}}', [0]),
    ("$.amount > 50", [1]), ("exists($.items[*] ? (@.price > 9))", [2]), ('$ == "x"', [3]),
]  # fmt: skip
"""Conditions, and which of the payloads each finds."""


async def test_conditions_on_payloads_find_messages(
    reader: Browser, connection: Connection
) -> None:
    ids = [
        await value(connection, "publish", queue="default", message=payload) for payload in PAYLOADS
    ]
    for condition, expected in CONDITIONS:
        page = await reader.text(str(httpx.URL("/messages", params={"payload": condition})))
        assert sorted(ids.index(it) for it in listed(page)) == expected, condition
        # The form still has what was typed, and not what became of it.
        assert f'name="payload" value="{escape(condition)}"' in page
        is_path = condition.startswith(("$.a", "exists", "$ "))
        assert ("Searched with the JSON path" in page) != is_path, condition


async def test_a_long_list_has_pages(reader: Browser, connection: Connection) -> None:
    ids = await publish(connection, 70)
    page = await reader.text("/messages")
    following = re.search(r'href="([^"]+)" rel="next"', page)
    assert following is not None
    rest = await reader.text(following[1].replace("&amp;", "&"))
    assert [*listed(page), *listed(rest)] == ids[::-1]
    assert 'rel="next"' not in rest


async def test_a_message_has_a_timeline(reader: Browser, connection: Connection) -> None:
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
    assert "Failed attempts" in page


async def test_texts_are_escaped(reader: Browser, writer: Browser, connection: Connection) -> None:
    name = f"q {HOSTILE}"
    await value(connection, "create_queue", name=name)
    waiting = await value(
        connection, "publish", queue=name, message={HOSTILE: HOSTILE}, type=HOSTILE, key=HOSTILE,
        headers={HOSTILE: HOSTILE}, dedup_key=HOSTILE,
    )  # fmt: skip
    await rows(connection, "claim", worker=HOSTILE)
    log = json.dumps([{"level": HOSTILE, "logger": HOSTILE, "text": HOSTILE}])
    await connection.execute(
        "select notifyq.keep_logs(array[$1::bigint], '{1}', '{1}', array[$2::text::json])",
        waiting,
        log,
    )
    dead = await make_dead(connection, details=HOSTILE)
    for path in (
        "/messages", f"/messages/{waiting}", f"/messages/{dead[0]}", "/dead", "/workers",
        f"/messages?queue={quote(HOSTILE)}&error={quote(HOSTILE)}&state=dead",
    ):  # fmt: skip
        for browser in (reader, writer):
            page = await browser.text(path)
            assert "<script>alert" not in page, path
            assert "<img" not in page, path
    assert "&lt;script&gt;" in await reader.text(f"/messages/{waiting}")


async def test_masked_values_are_hidden_on_all_pages(
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
    log = '[{"level": "INFO", "logger": "shop", "text": "login of ann: hunter22, tok99"}]'
    await connection.execute(
        "select notifyq.keep_logs(array[$1::bigint], '{1}', '{1}', array[$2::text::json])",
        *(message["id"], log),
    )
    id_ = message["id"]
    browser = await open_dashboard(masks=Masks.parse("password,token,card.*"))
    for path in ("/messages", f"/messages/{id_}", f"/messages/{id_}/payload", "/dead",
                 "/messages?state=dead"):  # fmt: skip
        page = await browser.text(path)
        assert "hunter22" not in page, path
        assert "tok99" not in page, path
        assert "4000123" not in page, path
    shown = await browser.text(f"/messages/{id_}")
    assert "of ann" in shown
    assert "login of ann: •••, •••" in shown
    for payload in ('$.user.password starts with "h"', "password = 1", "$.*.* == 1", "$.**.a == 1"):
        await browser.text(f"/messages?payload={quote(payload)}", 403)
    await browser.text(f"/messages?payload={quote('$.user.name == 1')}")
    blind = await open_dashboard(masks=Masks(all_payloads=True))
    for path in ("/messages", f"/messages/{id_}", f"/messages/{id_}/payload", "/dead"):
        page = await blind.text(path)
        assert "ann" not in page.replace("scanned", "").replace("cannot", "").replace(
            "channel", ""
        ), path
        assert "hunter22" not in page, path
    await blind.text(f"/messages?payload={quote('$.user.name == 1')}", 403)


async def test_a_payload_can_be_downloaded(reader: Browser, connection: Connection) -> None:
    long = {"text": "x" * 600_000, "number": 1}
    id_ = await value(connection, "publish", queue="default", message=long)
    assert "Too long for this page" in await reader.text(f"/messages/{id_}")
    answer = await reader.get(f"/messages/{id_}/payload")
    assert answer.json() == long
    assert "attachment" in answer.headers["content-disposition"]


async def test_a_waiting_message_is_cancelled(writer: Browser, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    page = await writer.act("/message/cancel", id=id_, back=f"/messages/{id_}")
    assert f"Cancelled message {id_}." in page
    ((row),) = await archived(connection, id_)
    assert (row["status"], row["details"]) == ("rejected", "cancelled")
    page = await writer.text(f"/messages/{id_}")
    assert "Retry" in page
    assert "Messages with this error" not in page


async def test_a_message_that_cannot_be_cancelled_is_locked_finished_or_unknown(
    writer: Browser, connection: Connection
) -> None:
    finished, locked = await publish(connection, 2)
    assert await value(connection, "cancel", id=finished)
    await claim_one(connection)
    for id_, why in (
        (finished, f"{finished} is finished: rejected"),
        (locked, f"{locked} is being handled by "),
        (2**62, f"there is no message {2**62}, neither live nor archived"),
    ):
        page = await writer.act("/message/cancel", id=id_, back="/messages")
        assert 'role="alert"' in page
        assert f"Message {id_} was not cancelled: {why}" in page


async def test_a_running_message_is_stopped(writer: Browser, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    held = await claim_one(connection)
    assert "Stop" in await writer.text(f"/messages/{id_}")
    asked = await writer.send("/message/stop", id=id_)
    assert "cancels the handler" in asked.text
    sure = {"id": id_, "confirmed": "yes", "back": f"/messages/{id_}"}
    assert f"Stopped message {id_}." in await writer.act("/message/stop", **sure)
    assert not await value(connection, "finish", id=id_, lock_token=held["lock_token"])
    assert f"{id_} is finished" in await writer.act("/message/stop", **sure)


async def test_a_waiting_message_is_changed(writer: Browser, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    back = {"id": id_, "back": f"/messages/{id_}"}
    assert "Change this message" in await writer.text(f"/messages/{id_}")
    assert "Nothing was changed" in await writer.act("/message/amend", **back)
    assert "not JSON" in await writer.act("/message/amend", payload="{", **back)
    page = await writer.act(
        "/message/amend", payload='{"n": 2}', priority="7", available_at="2099-01-31T12:00", **back
    )
    assert f"Changed message {id_}." in page
    row = await live(connection, id_)
    assert row is not None
    assert (row["message"], row["priority"], row["state"]) == ({"n": 2}, 7, "scheduled")
    details = await connection.fetchval("select details from messages.audit")
    assert details == {"changes": ["payload", "priority", "available_at"], "changed": True}
    await connection.execute("select messages.run_now($1)", id_)
    await claim_one(connection)
    assert "was not changed" in await writer.act("/message/amend", priority="1", **back)


async def test_a_scheduled_message_runs_now(writer: Browser, connection: Connection) -> None:
    id_ = await value(connection, "publish", queue="default", message=1, delay=timedelta(days=1))
    assert "Run now" in await writer.text(f"/messages/{id_}")
    assert "is due now" in await writer.act("/message/run-now", id=id_, back=f"/messages/{id_}")
    assert (await claim_one(connection))["id"] == id_
    assert "Nothing was changed" in await writer.act("/message/run-now", id=id_, back="/messages")


async def test_a_blocked_message_can_be_unblocked(writer: Browser, connection: Connection) -> None:
    (first,) = await publish(connection, 1)
    held = await value(connection, "publish", queue="default", message=1, after=[first])
    page = await writer.act("/message/unblock", id=held, back=f"/messages/{held}")
    assert "no longer waits for others" in page
    row = await live(connection, held)
    assert row is not None
    assert row["state"] == "waiting"


async def test_only_the_lock_that_was_shown_is_released(
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
    assert "Released message" in page
    assert not await value(connection, "finish", id=id_, lock_token=second["lock_token"])


async def test_a_dead_message_is_retried_once(writer: Browser, connection: Connection) -> None:
    (id_,) = await make_dead(connection)
    page = await writer.act("/message/retry", id=id_, back=f"/messages/{id_}")
    again = await connection.fetchval("select message_id from notifyq.redrive")
    assert f"as {again}." in page
    assert f'Retried as <a href="/messages/{again}">' in page
    assert "or retried already" in await writer.act("/message/retry", id=id_, back="/dead")
    assert await connection.fetchval("select count(*) from messages.message") == 1
    assert f'retry of <a href="/messages/{id_}">' in await writer.text(f"/messages/{again}")


async def test_a_dead_message_is_deleted(writer: Browser, connection: Connection) -> None:
    (id_,) = await make_dead(connection)
    asked = await writer.send("/message/discard", id=id_)
    assert "permanently" in asked.text
    assert await archived(connection, id_)
    page = await writer.act("/message/discard", id=id_, confirmed="yes")
    assert f"Deleted dead message {id_}." in page
    assert await archived(connection, id_) == []
    assert "was not deleted" in await writer.act("/message/discard", id=id_, confirmed="yes")


async def test_a_forged_or_forbidden_form_changes_nothing(
    reader: Browser, writer: Browser, connection: Connection
) -> None:
    (id_,) = await publish(connection, 1)
    fields = {"id": str(id_), "lock_token": "0", "confirmed": "yes"}
    for action in ("cancel", "stop", "amend", "run-now", "unblock", "release", "retry", "discard"):
        form = f"/message/{action}"
        assert (await reader.send(form, **fields)).status_code == 403
        for headers, token in (
            ({"origin": "http://127.0.0.2:8080"}, await writer.token()),
            ({"origin": "http://localhost:8080"}, "forged"),
        ):
            data = {"csrf": token, **fields}
            answer = await writer.client.post(form, data=data, headers=headers)
            assert answer.status_code == 403
        assert (await writer.get(form)).status_code == 405
        assert await live(connection, id_) is not None
        assert not await connection.fetchval("select count(*) from messages.audit")


async def test_the_steps_of_a_message_are_listed(reader: Browser, connection: Connection) -> None:
    [id_] = await publish(connection, 1)
    await connection.execute("select messages.claim()")
    await connection.execute(
        "select messages.step(m.id, m.lock_token, 'charge <1>', '{\"password\": \"x\"}') "
        "from messages.message as m"
    )
    page = await reader.text(f"/messages/{id_}")
    assert "charge &lt;1&gt;" in page
    assert '"x"' not in page
    assert "done" in page


async def test_steps_waits_and_attempts_are_one_timeline(
    reader: Browser, writer: Browser, connection: Connection
) -> None:
    await value(connection, "create_queue", name="q", max_attempts=2)
    (id_,) = await publish(connection, 1, "q")

    async def call() -> dict[str, Any]:
        return lock_of(await claim_one(connection, "host-1"))

    lock = await call()
    await value(connection, "step", **lock, name="charge", value={"password": "x"})
    await value(connection, "sleep", **lock, name="nap", delay=timedelta(milliseconds=0))
    await rows(connection, "retry", **lock, delay=timedelta(0), details="no luck")
    lock = await call()
    await value(connection, "step", **lock, name="book <b>", value="full", failed=True)
    await rows(connection, "await_signal", **lock, name="approval", signal="approved/1")
    page = await reader.text(f"/messages/{id_}")
    timeline = page.partition('class="timeline"')[2].partition("</ol>")[0]
    expected = [
        "Published", "Step &#39;charge&#39;: done", "Sleep &#39;nap&#39;: done",
        "Attempt 1: failed", "Step &#39;book &lt;b&gt;&#39;: failed",
        "Parked in &#39;approval&#39;",
    ]  # fmt: skip
    found = [timeline.find(text) for text in expected]
    assert -1 not in found, timeline
    assert found == sorted(found)
    assert "waits for signal approved/1" in page
    assert "Send …" not in page

    page = await writer.text(f"/messages/{id_}")
    send = re.search(r'href="([^"]+)#send"', page)
    assert send is not None
    form = await writer.text(send[1].replace("&amp;", "&"))
    assert 'name="signal" value="approved/1"' in form
    assert f'name="id" value="{id_}"' in form

    lock = await signalled(writer, connection, id_)
    await rows(connection, "await_signal", **lock, name="approval", signal="approved/1")
    page = await reader.text(f"/messages/{id_}")
    assert "Wait for a signal &#39;approval&#39;: received" in page
    assert "Attempt 2 went on" in page
    assert "Parked in" not in page


async def signalled(writer: Browser, connection: Connection, id_: int) -> dict[str, Any]:
    """Send the signal that a message waits for with the form, and claim the message."""
    page = await writer.act(
        "/signals/send", signal="approved/1", payload='{"by": "ann"}', id=str(id_)
    )
    assert "Sent signal approved/1: 1 parked message woken." in page
    return lock_of(await claim_one(connection))


async def test_the_page_of_parked_messages_sends_signals(
    reader: Browser, writer: Browser, connection: Connection
) -> None:
    assert "No message is parked." in await reader.text("/parked")
    (id_,) = await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    await rows(connection, "await_signal", **lock, name="approval", signal=HOSTILE)
    page = await reader.text("/parked?queue=default")
    assert f'<a href="/messages/{id_}">' in page
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page
    assert '<form method="post" action="/signals' not in page
    await reader.text("/parked?queue=none", 404)

    assert (await reader.send("/signals/send", signal=HOSTILE)).status_code == 403
    for fields, problem in (
        ({"signal": HOSTILE, "payload": "{"}, "The payload is not JSON"),
        ({"signal": ""}, "has 1 to 200 bytes"),
        ({"signal": HOSTILE, "id": "777"}, "no live message 777"),
    ):
        assert problem in await writer.act("/signals/send", back="/parked", **fields)
    assert not await connection.fetchval("select count(*) from notifyq.signal")
    assert not await connection.fetchval("select count(*) from messages.audit")

    page = await writer.act("/signals/send", signal=HOSTILE, payload='"secret"', back="/parked")
    assert "1 parked message woken" in page
    assert "No message is parked." in page
    [entry] = await connection.fetch("select * from messages.audit")
    assert (entry["action"], entry["subject"]) == ("signal.send", HOSTILE)
    assert "secret" not in str(entry["details"])


async def test_progress_and_output_are_shown_and_masked(
    open_dashboard: Open, connection: Connection
) -> None:
    browser = await open_dashboard(masks=Masks.parse("password"))
    (id_,) = await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    assert "<h2>Output</h2>" not in await browser.text(f"/messages/{id_}")
    await value(connection, "progress", **lock, fraction=0.25, note="page <1>")
    await value(connection, "emit", **lock, chunk={"password": "hunter22"})
    await value(connection, "emit", **lock, chunk="x" * 600_000)
    for number in range(120):
        await value(connection, "emit", **lock, chunk=f"word {number}")
    page = await browser.text(f"/messages/{id_}")
    assert "25 %" in page
    assert "page &lt;1&gt;" in page
    assert "hunter22" not in page
    assert "Too long for this page." in page
    assert "word 97" in page
    assert "word 98" not in page
    following = re.search(r'href="([^"]+)" rel="next"', page)
    assert following is not None
    page = await browser.text(following[1].replace("&amp;", "&"))
    assert "word 97" not in page
    assert "word 119" in page
    assert 'rel="next"' not in page


@pytest.mark.parametrize("children", [True, False])
async def test_a_stop_may_include_what_the_message_has_published(
    writer: Browser, connection: Connection, *, children: bool
) -> None:
    (id_,) = await publish(connection, 1)
    row = await claim_one(connection)
    (child,) = await publish(connection, 1)
    await connection.execute(
        "select from notifyq.record_step($1, $2, 'child', to_jsonb($3::bigint), child_id => $3)",
        id_, row["lock_token"], child,
    )  # fmt: skip
    question = await writer.send("/message/stop", id=str(id_))
    assert 'type="checkbox" name="children"' in question.text
    ticked = {"children": "yes"} if children else {}
    await writer.act("/message/stop", id=str(id_), confirmed="yes", **ticked)
    assert [it["status"] for it in await archived(connection, id_)] == ["rejected"]
    assert (await live(connection, child) is None) == children


async def test_a_dead_message_is_retried_from_a_step(
    reader: Browser, writer: Browser, connection: Connection
) -> None:
    (id_,) = await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    for name in ("one", "two <b>", "three"):
        await value(connection, "step", **lock, name=name)
    assert "Retry from here" not in await writer.text(f"/messages/{id_}")
    await value(connection, "finish", **lock, status="failed")
    assert "Retry from here" not in await reader.text(f"/messages/{id_}")
    page = await writer.text(f"/messages/{id_}")
    assert 'name="step" value="two &lt;b&gt;"' in page
    refused = await writer.act("/message/retry", id=str(id_), step="four", back="/dead")
    assert "has no recorded step" in refused
    await writer.act("/message/retry", id=str(id_), step="two <b>")
    again = await connection.fetchval("select id from messages.message")
    assert [row["name"] for row in await rows(connection, "steps", id=again)] == ["one"]
    [entry] = await connection.fetch("select action, details from messages.audit")
    assert entry["action"] == "dead.retry"
    assert entry["details"]["from"] == "two <b>"
    assert "Retry from here" not in await writer.text(f"/messages/{id_}")


async def test_only_users_who_may_write_see_encrypted_messages(
    open_dashboard: Open, connection: Connection
) -> None:
    keys = Keys({"k1": b"1" * 32})
    await connection.execute("select messages.create_queue('secret', encrypted => true)")
    number = await connection.fetchval(
        "select messages.publish('secret', $1::text::jsonb)",
        keys.encrypt("secret", "payload", '{"card": 4711, "password": "hunter22"}'),
    )
    for may_write, given in ((True, keys), (False, keys), (True, None)):
        browser = await open_dashboard(
            authenticate=lambda _, it=may_write: User("ann", may_write=it),
            allow_writes=True, masks=Masks(("password",)), keys=given,
        )  # fmt: skip
        assert "encrypted with k1" in await browser.text("/messages?queue=secret")
        for path in (f"/messages/{number}", f"/messages/{number}/payload"):
            page = await browser.text(path)
            assert ("4711" in page) == (may_write and given is not None)
            assert "hunter22" not in page
