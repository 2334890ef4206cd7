"""The mirror of a lake as Delta tables, by deltalake. Every lake has it."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from notifyq.spark.lake.lake import PARTITIONS, LakeFile
from notifyq.spark.lake.mirror import Change, ConflictError, Mirror, Opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class DeltaMirror(Mirror):
    """The Delta tables of a lake: each is in the folder of its files."""

    title = "Delta"

    def tidy(self, dataset: str) -> None:
        """Do nothing: deltalake cleans its log when it makes a checkpoint."""

    def _opened(self, dataset: str) -> Opened | None:
        from deltalake import DeltaTable

        storage = self.lake.storage
        folder, options = storage.name(dataset), storage.delta_options
        with storage.reading(dataset):
            if not DeltaTable.is_deltatable(folder, storage_options=options):
                return None
            table = DeltaTable(folder, storage_options=options)
        entries = pa.table(table.get_add_actions(flatten=False)).to_pylist()
        return Opened(
            table,
            table.transaction_version(self.lake.token) or 0,
            {f"{dataset}/{unquote(entry['path'])}": entry for entry in entries},
            _fault(table),
        )

    def _reset(self, dataset: str) -> None:
        pass  # an update takes out what another program added

    @contextmanager
    def _writing(self, dataset: str) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError

        try:
            with self.lake.storage.writing(dataset):
                yield
        except CommitFailedError as error:
            raise ConflictError(error) from None

    def _create(self, dataset: str, change: Change) -> None:
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        create_table_with_add_actions(
            self.lake.storage.name(dataset),
            Schema.from_arrow(change.schema),
            _actions(change),
            mode="append",
            partition_by=change.folders,
            name=dataset,
            storage_options=self.lake.storage.delta_options,
            commit_properties=self._properties(change),
        )

    def _add_columns(self, table: Any, schema: pa.Schema) -> None:
        from deltalake import Schema

        known = {field.name for field in table.schema().fields}
        new = [field for field in Schema.from_arrow(schema).fields if field.name not in known]
        if new:
            table.alter.add_columns(new)
            table.update_incremental()

    def _update(self, dataset: str, table: Any, change: Change) -> None:
        del dataset
        table.create_write_transaction(
            _actions(change),
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=self._properties(change),
        )

    def _properties(self, change: Change) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(app_transactions=[Transaction(self.lake.token, change.batch)])


def _fault(table: Any) -> str | None:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return None
    if not pa.table(table.deletion_vectors()).num_rows:
        return None
    # Such a file cannot be taken out by its path alone, as a repair would.
    return (
        "it deletes rows of files by deletion vectors. To undo that, delete its folder _delta_log: "
        "the next run writes another"
    )


def _actions(change: Change) -> list[Any]:
    removed = [_removal(path, entry) for path, entry in change.removed.items()]
    return [*removed, *map(_addition, change.added)]


def _inside(path: str) -> str:
    """Return the path relative to the folder of the table."""
    return path.partition("/")[2]


def _values(file: LakeFile) -> dict[str, str | None]:
    values = {name: getattr(file, name) for name in PARTITIONS.names}
    return {name: str(value) for name, value in values.items() if value is not None}


def _addition(file: LakeFile) -> Any:
    from deltalake.transaction import AddAction

    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.first_id is not None:
        stats |= {"minValues": {"id": file.first_id}, "maxValues": {"id": file.last_id}}
    return AddAction(
        path=_inside(file.path),
        size=file.bytes,
        partition_values=_values(file),
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(stats),
    )


def _removal(path: str, entry: Mapping[str, Any]) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        path=_inside(path),
        size=entry["size_bytes"],
        partition_values={
            name: None if value is None else str(value)
            for name, value in (entry.get("partition") or {}).items()
        },
        data_change=True,
        deletion_timestamp=int(time.time() * 1000),
    )
