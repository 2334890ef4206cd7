"""The dashboard in a real browser: by day and night, wide and narrow, by keys, live."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from support.browsing import in_a_browser, opened, serving
from support.database import Connection

pytestmark = in_a_browser

PAGES = ["/", "/queues", "/queue?name=mail", "/health", "/audit", "/none"]

# What is read of a page as it is painted: the contrast of each text with what is behind it.
CONTRAST = """
() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b]
    .map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = it => {
    for (let at = it; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const it = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !it.checkVisibility({visibilityProperty: true})
        || it.closest('title, desc, script, .visually-hidden, .skip, option')) continue;
    const style = getComputedStyle(it);
    const ink = rgba(it instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(it))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen += 1;
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)}: ${walker.currentNode.textContent.trim()}`);
  }
  return {poor, seen};
}
"""
# What makes a page wider than its window.
SIDEWAYS = """
() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  return [...document.body.querySelectorAll('*')]
    .filter(it => it.getBoundingClientRect().right > wide + 1 && !it.closest('.scroll'))
    .map(it => `${it.tagName}.${it.getAttribute('class')} ${it.getBoundingClientRect().right}`);
}
"""
# Each control has a name, each table header a scope, each id is there once.
UNNAMED = """
() => {
  const found = [];
  for (const it of document.querySelectorAll('input:not([type=hidden]), select, button, a'))
    if (!(it.labels?.length || it.ariaLabel || it.textContent.trim() || it.title))
      found.push(it.outerHTML);
  for (const it of document.querySelectorAll('th:not([scope])')) found.push(it.outerHTML);
  for (const it of document.querySelectorAll('svg:not([aria-hidden])'))
    if (!(it.querySelector('title')?.textContent && it.querySelector('desc')?.textContent))
      found.push(it.outerHTML.slice(0, 99));
  const ids = [...document.querySelectorAll('[id]')].map(it => it.id);
  found.push(...ids.filter((id, index) => ids.indexOf(id) !== index).map(id => `#${id} twice`));
  for (const [sign, count] of [['main', 1], ['h1', 1], ['header', 1], ['nav[aria-label]', 1]])
    if (document.querySelectorAll(sign).length < count) found.push(`no ${sign}`);
  return found;
}
"""


@pytest.fixture
async def filled(connection: Connection) -> None:
    await connection.execute("""
      select messages.create_queue('mail', rate => 5),
        messages.create_queue(repeat('long', 45));
      select messages.publish('mail', '1') from generate_series(1, 7);
      insert into messages.message_archive (
        id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts,
        status, queue, message, headers
      )
      select 1000 + i, a.at - interval '3 s', a.at - interval '3 s', a.at - interval '1 s', a.at,
        1, 0, 1, (case when i % 9 = 0 then 'failed' else 'success' end)::messages.message_status,
        'mail', '1', '{}'
      from generate_series(1, 300) as i
      cross join lateral (select now() - make_interval(secs => i * 11) as at) as a;
      select notifyq.note_audit('ann', 'queue.pause', repeat('long', 45), '{"n": 1}', '10.0.0.1');
    """)


async def test_pages_are_accessible_in_both_themes_and_all_widths(
    database: str, filled: None
) -> None:
    async with serving(database, allow_writes=True) as base:
        for scheme, width in (("light", 1280), ("dark", 360)):
            # The console reports the one page that does not exist.
            async with opened(width=width, but="404", color_scheme=scheme) as page:
                for path in PAGES:
                    await page.goto(base + path)
                    found = await page.evaluate(CONTRAST)
                    assert found["poor"] == [], f"{path} {scheme}"
                    assert found["seen"] > 8
                    assert await page.evaluate(SIDEWAYS) == [], f"{path} at {width}"
                    assert await page.evaluate(UNNAMED) == [], path
                await page.goto(base)
                paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (scheme == "light") == (int(paper.split("(")[1].split(",")[0]) > 128)


async def test_values_are_updated_while_a_page_is_open(
    database: str, connection: Connection, filled: None
) -> None:
    async with serving(database) as base, opened() as page:
        await page.goto(base)
        await expect(page.locator("#live")).to_have_text("live")
        waiting = page.locator("[data-figure=waiting]")
        await expect(waiting).to_have_text("7")
        await connection.execute("select messages.publish('mail', '1')")
        await expect(waiting).to_have_text("8")
        # Tables are read again.
        await page.goto(f"{base}/queues")
        row = page.get_by_role("row").filter(has_text="mail")
        await expect(row).to_contain_text("open")
        await connection.execute(
            "select messages.pause_queue('mail'); select messages.publish('mail', '1')"
        )
        await expect(row).to_contain_text("paused", timeout=15_000)
        # A pause by key holds it.
        await page.keyboard.press("l")
        await expect(page.locator("#live")).to_have_text("paused")


async def test_live_values_return_after_a_proxy_had_no_server(database: str) -> None:
    async with serving(database) as base, opened(but="502") as page:
        await page.route("**/live", lambda route: route.fulfill(status=502), times=1)
        await page.goto(base)
        await expect(page.locator("#live")).to_have_text("reconnecting")
        await expect(page.locator("#live")).to_have_text("live", timeout=15_000)


async def test_a_queue_is_chosen_by_keys(database: str, filled: None) -> None:
    async with serving(database) as base, opened() as page:
        await page.goto(base)
        await page.get_by_label("Queue", exact=True).focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Tab", "Enter"):
            await page.keyboard.press(key)
        await expect(page).to_have_url(f"{base}/?range=1h&queue=mail")


async def test_keyboard_shortcuts(database: str, connection: Connection) -> None:
    async with serving(database, allow_writes=True) as base, opened() as page:
        await page.goto(base)
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to content"
        await page.keyboard.press("Enter")
        await page.keyboard.press("?")
        await expect(page.locator("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog")).to_be_hidden()
        await page.keyboard.press("g")
        await page.keyboard.press("q")
        await expect(page.locator("h1")).to_have_text("Queues")
        await page.keyboard.press("/")
        await page.keyboard.type("defa")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="default")).to_be_visible()
        await page.get_by_role("button", name="Pause").focus()
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status")).to_have_text("Paused default.")
    assert await connection.fetchval("select paused from messages.queue")


async def test_the_theme_is_kept(database: str) -> None:
    async with serving(database) as base, opened(color_scheme="light") as page:
        await page.goto(base)
        await page.locator("#theme button").click()
        await page.goto(f"{base}/queues")
        paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(18, 22, 27)"


async def test_pages_work_without_scripts(database: str, connection: Connection) -> None:
    async with (
        serving(database, allow_writes=True) as base,
        opened(java_script_enabled=False) as page,
    ):
        await page.goto(f"{base}/queue?name=default")
        await page.get_by_label("Max attempts", exact=True).fill("7")
        await page.get_by_label("Ordered").check()
        await page.get_by_role("button", name="Change").click()
        await expect(page.get_by_role("status")).to_have_text("Changed max_attempts, ordered.")
    row = await connection.fetchrow("select max_attempts, ordered from messages.queue")
    assert row is not None
    assert tuple(row) == (7, True)
