"""In a real browser: a message is searched and opened, and its group retried; also on a phone."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from operations.dashboard.conftest import make_dead
from support.browsing import in_a_browser, opened, serving
from support.database import Connection, publish, rows, value

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>"

pytestmark = in_a_browser


async def test_a_wrong_condition_can_be_corrected(database: str, connection: Connection) -> None:
    for payload in ({"customer": "x", "amount": 60}, {"customer": "y", "amount": 70}):
        await value(connection, "publish", queue="default", message=payload)
    async with (
        serving(database, allow_writes=True) as base,
        opened(base_url=base, but="status of 400 (Bad Request)") as page,
    ):
        await page.goto("/messages")
        await page.get_by_text("More conditions").click()
        await page.get_by_label("Payload").fill("customer = 'x' and amount >")
        await page.get_by_label("Queue or stream").fill("default")
        async with page.expect_response("**/messages?*") as answered:
            await page.get_by_role("button", name="Search").click()
        assert (await answered.value).status == 400
        await expect(page.locator("#problem")).to_contain_text("a value is missing")
        await expect(page.get_by_label("Payload")).to_have_value("customer = 'x' and amount >")
        await expect(page.get_by_label("Queue or stream")).to_have_value("default")
        await page.get_by_label("Payload").fill("customer = 'x' and amount > 50")
        await page.get_by_role("button", name="Search").click()
        await expect(page.locator("#found tbody tr")).to_have_count(1)
        await expect(page.locator("#read-as")).to_contain_text('$."customer" == "x"')


@pytest.mark.parametrize("has_scripts", [True, False])
async def test_a_group_is_found_and_retried(
    database: str, connection: Connection, *, has_scripts: bool
) -> None:
    ids = await make_dead(connection, 3, f"Timeout after 5 s {HOSTILE}")
    await make_dead(connection, 1, "another")
    async with (
        serving(database, allow_writes=True) as base,
        opened(base_url=base, java_script_enabled=has_scripts) as page,
    ):
        await page.goto("/messages")
        await page.get_by_label("State").select_option("dead")
        await page.get_by_label("Error contains").fill("timeout")
        await page.get_by_role("button", name="Search").click()
        await expect(page.locator("#found tbody tr")).to_have_count(3)
        await page.get_by_role("link", name=str(ids[0]), exact=True).click()
        await expect(page.get_by_role("heading", name=f"Message {ids[0]}")).to_be_visible()
        await expect(page.locator(".timeline")).to_contain_text("Finished: failed")
        await page.get_by_role("link", name="Dead", exact=True).click()
        group = page.get_by_role("row", name="Timeout after")
        await expect(group).to_contain_text("3")
        await group.get_by_role("button", name="Retry").click()
        await expect(page.get_by_role("heading")).to_have_text("Retry 3 dead messages?")
        await page.get_by_role("button", name="Retry 3").click()
        await expect(page.get_by_role("status").first).to_contain_text("3 dead messages were")
        await expect(page.locator("#groups tbody tr")).to_have_count(1)
    assert await connection.fetchval("select count(*) from notifyq.redrive") == 3


async def test_pages_fit_on_a_phone(database: str, connection: Connection) -> None:
    name = f"q-{'x' * 60} {HOSTILE}"
    await value(connection, "create_queue", name=name)
    await value(connection, "create_stream", name="orders")
    await value(connection, "subscribe", stream="orders", subscriber="warehouse-" + "y" * 60)
    await connection.execute("select messages.schedule($1, '@daily', 'default')", HOSTILE)
    await value(connection, "notifyq.worker_heartbeat", worker="host-" + "z" * 60, queues=[name])
    (id_,) = await publish(connection, 1, name)
    await rows(connection, "claim", worker="host-" + "z" * 60)
    dead = await make_dead(connection, 1, "E" * 200)
    async with (
        serving(database, allow_writes=True) as base,
        opened(base_url=base, width=360) as page,
    ):
        for path in (
            "/messages", f"/messages/{id_}", f"/messages/{dead[0]}", "/dead", "/streams",
            "/schedules", "/workers",
        ):  # fmt: skip
            await page.goto(path)
            for it in await page.locator("details").all():
                await it.evaluate("it => { it.open = true; }")
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, (path, width)
            # Nor is anything of a table beside what is seen.
            for it in await page.locator(".scroll").all():
                assert await it.evaluate("it => it.scrollWidth <= it.clientWidth"), path
