"""The page in a real browser: what is to be seen is seen, and nothing is asked of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from notifyq.database.pool import Database
from notifyq.operations.report import gather, page
from notifyq.operations.report.charts import charts
from operations.report.test_report import FILL, HOSTILE
from support.browsing import in_a_browser, opened
from support.database import session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = in_a_browser

_SHOWN = """
() => [...document.querySelectorAll('figure svg')]
  .filter(it => it.getClientRects().length)
  .map(it => {
    const box = it.getBoundingClientRect();
    const drawn = [...it.querySelectorAll('path, use')].filter(part => {
      const size = part.getBoundingClientRect();
      return size.width + size.height > 20;
    });
    return {width: box.width, height: box.height, parts: drawn.length,
      name: it.closest('figure').id,
      texts: [...it.querySelectorAll('text')].map(
        text => parseFloat(text.getBoundingClientRect().height))};
  })
"""
_COLOURS = """
() => {
  const text = [...document.querySelectorAll('figure svg text')]
    .find(it => it.getClientRects().length);
  const rgb = it => getComputedStyle(it)[it === text ? 'fill' : 'backgroundColor']
    .match(/\\d+/g).slice(0, 3).map(Number).reduce((sum, part) => sum + part, 0);
  return [rgb(document.body), rgb(text)];
}
"""


async def rendered(file: Path, *, width: int, scheme: Any) -> dict[str, Any]:
    """Open a page in a window and return what is seen of it."""
    async with opened(width=width, color_scheme=scheme) as window:
        asked: list[str] = []
        window.on("request", lambda request: asked.append(request.url))
        await window.goto(file.as_uri())
        found = {
            "charts": await window.evaluate(_SHOWN),
            "colours": await window.evaluate(_COLOURS),
            "overflow": await window.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            ),
            "text": await window.inner_text("body"),
            "picture": await window.screenshot(full_page=True),
        }
    assert asked == [file.as_uri()]
    return found


async def test_a_browser_shows_it_wide_and_narrow_by_day_and_by_night(
    database: str, tmp_path: Path
) -> None:
    async with session(database) as connection:
        await connection.execute(FILL, HOSTILE)
        await connection.execute(
            "update messages.message_archive set queue = repeat('long.', 30) where queue = 'mail'"
        )
    async with Database(database) as source:
        report = await gather(source)
    file = tmp_path / "report.html"
    file.write_text(page(report), encoding="utf-8")
    day = await rendered(file, width=1200, scheme="light")
    night = await rendered(file, width=375, scheme="dark")
    for seen, least in ((day, 600), (night, 280)):
        assert sorted(chart["name"] for chart in seen["charts"]) == sorted(
            f"chart-{name}" for name in charts(report)
        )
        for chart in seen["charts"]:
            assert chart["width"] >= least, chart
            assert chart["height"] >= 150, chart
            assert chart["parts"] >= 1, chart
            # Letters that can be read.
            assert min(chart["texts"]) >= 8, chart
        # The page goes down, never to the side.
        assert seen["overflow"] <= 0
        assert HOSTILE in seen["text"]
        assert len(seen["picture"]) > 10_000
    paper, ink = day["colours"]
    assert paper > 600 > ink
    paper, ink = night["colours"]
    assert paper < 200 < ink
