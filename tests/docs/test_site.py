"""The site made of the pages: built without a warning, whole, and read in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.async_api import async_playwright

from docs.pages import PAGES
from support.database import ROOT

_NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in _NAMES if (found := shutil.which(name))), None)


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", settings.split("\nnav:\n")[1], re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES[1:]}
    # README.md and CHANGELOG.md.
    assert set(nav) == {*pages, "index.md", "changelog.md"}
    assert len(nav) == len(set(nav))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as a user does, and return its folder."""
    pytest.importorskip("material", reason="pip install 'notifyq[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return folder


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember an anchor, a link, or something that is fetched."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.fetched += [values[name] for name in ("src",) if name in values]
        if tag == "link":
            self.fetched.append(values["href"])


@pytest.mark.timeout(120)
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > len(PAGES)
    lost = list(_lost(site, pages))
    assert not lost


def _lost(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        # The reader's own machine.
        links = [link for link in page.links if not link.startswith("http://127.0.0.1")]
        for link in (*links, *page.fetched):
            target, _, anchor = unquote(link).partition("#")
            # Links of the page for missing pages begin at the top.
            base = site if path.name == "404.html" else path.parent
            linked = (base / target.lstrip("/")).resolve() if target else path
            if link.startswith(("http:", "https:", "//")) or not linked.exists():
                yield f"{path.relative_to(site)}: {link}"
            elif anchor and linked in pages and anchor not in pages[linked].ids:
                yield f"{path.relative_to(site)}: {link} (no such anchor)"


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium: apt-get install chromium")
@pytest.mark.timeout(120)
async def test_a_browser_reads_and_searches_it_without_any_server(site: Path) -> None:
    """As files: no server, no worker threads, nothing from a network."""
    messages: list[str] = []
    requests: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"]
        )
        opened = await browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(100_000)  # the whole test has one, too
        opened.on("console", lambda message: messages.append(message.text))
        opened.on("pageerror", lambda error: messages.append(str(error)))
        opened.on("request", lambda request: requests.append(request.url))
        await opened.goto((site / "index.html").as_uri())
        assert "INSERT" in await opened.inner_text("article")
        await opened.get_by_role("link", name="Reference", exact=True).first.click()
        await opened.goto((site / "reference/sql.html").as_uri())
        assert await opened.locator("article h3#publish_many").is_visible()

        # The search accepts text as soon as its index is ready.
        await opened.locator("input[name=query]").click()
        await opened.get_by_text("Type to start searching").wait_for()
        await opened.keyboard.type("queue_shares")
        found = opened.locator(".md-search-result__link[href*='queue_shares']").first
        await found.wait_for()
        await found.click()
        await opened.wait_for_url("**/sql.html*#queue_shares")

        # On a telephone a page goes down and not to the side.
        await opened.set_viewport_size({"width": 375, "height": 800})
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        for name in ("index", "reference/sql", "operations/install", "coming-from/pgq"):
            await opened.goto((site / f"{name}.html").as_uri())
            assert await opened.evaluate(wide) <= 0, name
        await browser.close()
    assert messages == []
    assert [url for url in requests if not url.startswith((site.as_uri(), "blob:", "data:"))] == []
