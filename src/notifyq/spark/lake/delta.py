"""The mirror of a lake as Delta tables, which other engines read without PostgreSQL.

The list in PostgreSQL is authoritative. The mirror follows it in whole batches. It may lag after a
process was killed in between; the next writer of the lake brings it up to date.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from notifyq.errors import LakeError
from notifyq.spark.lake.lake import ARCHIVE, Lake, LakeFile

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDERS = ("day", "queue")


def check(lake: Lake, dataset: str = ARCHIVE) -> None:
    """Raise LakeError if the lake has batches that its database lost by a restore."""
    table = _opened(lake, dataset)
    if table is None:
        return
    seen = table.transaction_version(lake.token)
    if seen is not None and seen > lake.last_batch(dataset):
        raise LakeError(
            f"{lake.location} is newer than its database, which was restored to an earlier state: "
            "create a lake in another folder, or reset this one with `notifyq spark tidy --repair`"
        )


def mirror(lake: Lake, dataset: str = ARCHIVE, *, is_repair: bool = False) -> int | None:
    """Update the Delta table to the files of the lake, in one commit; return its version.

    It is idempotent. None: the lake has no files yet.
    """
    last = lake.last_batch(dataset)
    table = _opened(lake, dataset)
    seen = table.transaction_version(lake.token) if table is not None else None
    if seen == last and not is_repair:
        return int(table.version())
    files = {_path(file): file for file in lake.files(dataset)}
    known = _known(table)
    added = [_action(path, file) for path, file in files.items() if path not in known]
    removed = [_removal(path, entry) for path, entry in known.items() if path not in files]
    if table is None and not added:
        return None
    _commit(lake, dataset, table, [*removed, *added], last)
    return int(_opened(lake, dataset).version())


def _opened(lake: Lake, dataset: str) -> Any:
    from deltalake import DeltaTable

    folder, options = lake.storage.name(dataset), lake.storage.delta_options
    with lake.storage.reading(dataset):
        if not DeltaTable.is_deltatable(folder, storage_options=options):
            return None
        return DeltaTable(folder, storage_options=options)


def _commit(lake: Lake, dataset: str, table: Any, actions: list[Any], last: int) -> None:
    from deltalake import CommitProperties, Schema, Transaction
    from deltalake.transaction import create_table_with_add_actions

    files = lake.files(dataset)
    schema = Schema.from_arrow(lake.schema(dataset, files))
    folders = [name for name in _FOLDERS if name in {field.name for field in schema.fields}]
    properties = CommitProperties(app_transactions=[Transaction(lake.token, last)])
    with lake.storage.writing(dataset):
        if table is None:
            create_table_with_add_actions(
                lake.storage.name(dataset),
                schema,
                actions,
                mode="append",
                partition_by=folders,
                name=dataset,
                storage_options=lake.storage.delta_options,
                commit_properties=properties,
            )
        else:
            table.create_write_transaction(
                actions, "append", schema, folders, commit_properties=properties
            )


def _path(file: LakeFile) -> str:
    """Return the path relative to the folder of the table."""
    return file.path.partition("/")[2]


def _values(file: LakeFile) -> dict[str, str | None]:
    values = {"day": file.day.isoformat() if file.day else None, "queue": file.queue}
    return {name: value for name, value in values.items() if value is not None}


def _action(path: str, file: LakeFile) -> Any:
    from deltalake.transaction import AddAction

    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.first_id is not None:
        stats |= {"minValues": {"id": file.first_id}, "maxValues": {"id": file.last_id}}
    return AddAction(
        path=path,
        size=file.bytes,
        partition_values=_values(file),
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(stats),
    )


def _known(table: Any) -> Mapping[str, Any]:
    """Return the files of the Delta table, by path."""
    if table is None:
        return {}
    import pyarrow as pa

    entries = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return {unquote(entry["path"]): entry for entry in entries}


def _removal(path: str, entry: Mapping[str, Any]) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        path=path,
        size=entry["size_bytes"],
        partition_values={
            name: None if value is None else str(value)
            for name, value in (entry.get("partition") or {}).items()
        },
        data_change=True,
        deletion_timestamp=int(time.time() * 1000),
    )
