"""Lakes of tests, filled without an export: each test decides what is in which batch."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from psycopg import Connection

from notifyq.spark.columns import ARCHIVE as COLUMNS
from notifyq.spark.connection import connect, connect_arrow
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.export import export
from notifyq.spark.lake.files import FileWriter
from notifyq.spark.lake.lake import ARCHIVE, ARCHIVE_SCHEMA, Lake
from notifyq.spark.lake.mirror import Mirror
from notifyq.spark.statements import selected

EVENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("created_at", pa.timestamp("us", "UTC")),
        ("message", pa.string()),
    ]
)


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


def add_events(
    session: Connection[Any],
    lake: Lake,
    first: int,
    schema: pa.Schema = EVENTS,
    key: str | None = None,
) -> None:
    """Add a file of ten events to a table, as a micro-batch does."""
    columns = {name: [key if name == "key" else None] * 10 for name in schema.names}
    rows = pa.table({**columns, "id": list(range(first, first + 10))}, schema)
    with FileWriter(
        lake.home, "events_x", schema, day=date(2026, 3, 1), time_column="created_at"
    ) as file:
        file.write(rows)
        written = file.close()
    lake.commit(session, [written], dataset="events_x")


def add_later_version(
    session: Connection[Any], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit a file that a later version has written: message 99 has the column `colour`."""
    later = ARCHIVE_SCHEMA.append(pa.field("colour", pa.string()))
    monkeypatch.setattr("notifyq.spark.lake.lake.ARCHIVE_SCHEMA", later)
    with FileWriter(lake.home, ARCHIVE, later, day=date(2026, 3, 1), queue="new") as file:
        values = {"id": [99], "colour": ["red"]}
        file.write(pa.table({name: values.get(name, [None]) for name in later.names}, later))
        lake.commit(session, [file.close()])


def update_twice_at_once(
    kind: type[Mirror], database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export, and let two mirrors follow: one is about to write as the other one does."""
    lake = Lake(database, folder)
    with monkeypatch.context() as patch:
        patch.setattr(mirrors, "follow", lambda *_: None)
        export(database, folder)
    update = kind._update

    def late(*given: Any) -> None:
        monkeypatch.setattr(kind, "_update", update)
        mirrors.follow(lake)
        update(*given)

    monkeypatch.setattr(kind, "_update", late)
    mirrors.follow(lake)
