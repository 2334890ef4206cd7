"""The examples of docs/integrations/spark.md run, in the order of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs.pages import blocks
from support.database import ROOT, Connection


async def test_the_examples_run(
    spark: Any, database: str, connection: Connection, tmp_path: Path
) -> None:
    await connection.execute("""
      select messages.create_queue('scores');
      select messages.create_stream('orders');
      select messages.publish_many('scores', array['{"amount": 5}', '{}']::jsonb[]);
    """)
    # What has this name goes to the executors by value, as from a program of a user.
    given: dict[str, Any] = {"__name__": "__main__", "DSN": database, "LAKE": tmp_path / "lake"}
    page = ROOT / "docs/integrations/spark.md"
    try:
        for block in blocks(page, "python"):
            text = "\n" * (block.line - 1) + block.text
            exec(compile(text, str(page), "exec"), given)
        # Rows of this source never end: one micro-batch is enough.
        while not given["query"].recentProgress:
            given["query"].awaitTermination(0.1)
    finally:
        if "query" in given:
            given["query"].stop()
    ended = await connection.fetch(
        "select status::text, count(*) from messages.message_archive group by 1 order by 1"
    )
    assert [tuple(row) for row in ended] == [("rejected", 1), ("success", 1)]
    assert given["spark"] is spark or given["spark"]._jvm is spark._jvm
