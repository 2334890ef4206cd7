"""Make the pictures of top.md: `notifyq top` at 80 columns and 24 lines, on a database of its own.

python tools/docs/make_top.py
"""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

# What a terminal shows needs no fonts from elsewhere.
_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*|<!-- .*? -->", re.DOTALL)
# A line for each text, and none for the parts of a style or a frame.
_BREAKS = re.compile(r"\s*\n\s*(?!<(?:text|clipPath|g )|\s)")
_PICTURES = {
    "queues": (),
    "dead": ("3",),
}


async def main() -> None:
    """Fill a private database, and press keys."""
    from notifyq import schema
    from notifyq.database.pool import Database
    from notifyq.operations.top.app import Top
    from notifyq.operations.top.snapshot import Source
    from notifyq.server import debian_binaries, wheel_binaries
    from notifyq.testing.plugin import private_server
    from operations.top.filled import fill
    from support.database import session

    with private_server(debian_binaries() or wheel_binaries()) as dsn:
        async with session(dsn) as connection:
            await schema.install(connection)
            await fill(connection)
        async with Database(dsn) as database:
            app = Top(Source(database), every=timedelta(seconds=0.5))
            app._name = "db.example/shop"  # noqa: SLF001  not the one of this machine
            async with app.run_test(size=(80, 24)) as pilot:
                await pilot.pause(3)
                for name, keys in _PICTURES.items():
                    for key in keys:
                        await pilot.press(key)
                        await pilot.pause(2)
                    picture = _ELSEWHERE.sub("", app.export_screenshot(title="notifyq top"))
                    picture = _BREAKS.sub(" ", picture).rstrip() + "\n"
                    (ROOT / f"docs/assets/top-{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
