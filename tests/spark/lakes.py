"""Lakes of tests, filled without an export: each test decides what is in which batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from notifyq.spark.columns import ARCHIVE as COLUMNS
from notifyq.spark.connection import connect, connect_arrow
from notifyq.spark.lake.files import FileWriter
from notifyq.spark.lake.lake import ARCHIVE, ARCHIVE_SCHEMA, Lake
from notifyq.spark.statements import selected


def as_role(dsn: str, role: str) -> str:
    """Give a DSN whose sessions begin as another role."""
    return f"{dsn}?options=-c%20role%3D{role}"


def grow(dsn: str, folder: Path, condition: str = "true") -> int:
    """Add the rows of the archive that meet a condition to a lake, as one batch; return it."""
    lake = Lake.create(dsn, folder)
    wanted = selected(COLUMNS).as_string(None)
    with connect_arrow(dsn) as session, session.cursor() as cursor:
        cursor.execute(
            f"select {wanted}, (r.archived_at at time zone 'UTC')::date as day "
            f"from messages.message_archive as r where {condition}"
        )
        rows = cursor.fetch_arrow_table()
    files: list[Any] = []
    for day in pc.unique(rows["day"]).to_pylist():
        of_day = rows.filter(pc.equal(rows["day"], day))
        for queue in pc.unique(of_day["queue"]).to_pylist():
            writer = FileWriter(lake.home, ARCHIVE, ARCHIVE_SCHEMA, day=day, queue=queue)
            writer.write(of_day.filter(pc.equal(of_day["queue"], queue)))
            files.append(writer.close())
    with connect(dsn) as session:
        batch = lake.commit(session, files)
    assert batch is not None
    return batch
