"""The examples of docs/integrations/spark-source.md work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spark.sources import finish, publish
from support.database import ROOT, Connection


async def test_the_examples_of_the_page_work(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs/integrations/spark-source.md").read_text(encoding="utf-8")
    await publish(connection, 20)
    await finish(connection, 20)
    await connection.execute("select messages.create_stream('orders')")
    await connection.execute("select messages.publish('orders', '{}')")
    names: dict[str, Any] = {"dsn": database, "folder": str(tmp_path)}
    found = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(found) == 3
    for text in found:
        exec(compile(text, "docs/integrations/spark-source.md", "exec"), names)
    assert names["spark"] is spark
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 1
