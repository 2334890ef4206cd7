"""The mirror of a lake as Iceberg tables, by pyiceberg; their catalog is in the same PostgreSQL.

A lake has them from keep() on: then its namespace is in the catalog. The catalog's two tables are
in a schema of their own. Metadata is in the folder `_iceberg` of the lake, apart from the data: a
program that cleans the folder of a Delta table does not delete it, nor the other way round.
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.fs
from psycopg import conninfo

from notifyq.errors import ConfigurationError, LakeError
from notifyq.spark import statements
from notifyq.spark.connection import completed, opened, translated
from notifyq.spark.lake.lake import Lake, LakeFile
from notifyq.spark.lake.mirror import Change, ConflictError, Mirror, Opened
from notifyq.spark.lake.stores import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

CATALOG = "notifyq"
"""The name that the rows of our tables have in the catalog."""
_FOLDER = "_iceberg"
_BATCH = "notifyq.batch"
"""The property of a table that is the last batch in it."""
_OWN = {
    # A commit that pyiceberg repeats has files of batches that another process has added since.
    "commit.retry.num-retries": "0",
    # The files are the lake's: Java's libraries then delete none, not even with the table.
    "gc.enabled": "false",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
_REPAIR = "`notifyq spark tidy --repair` undoes that"
_KEPT = timedelta(days=1)
"""How long a snapshot is kept after it was replaced, and metadata that no snapshot has."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def namespace(lake: Lake) -> str:
    """Return the namespace of a lake's tables in the catalog."""
    return f"lake_{lake.id}"


def keep(lake: Lake) -> None:
    """Let a lake have Iceberg tables from now on: each is created with its next update.

    The first one of a database creates the schema of the catalog. Raises ConfigurationError
    without pyiceberg, and for a store that is not s3.
    """
    if _has_tables(lake):
        return
    properties = lake.storage.iceberg_options
    _library()
    with opened(lake.dsn) as session:
        if not session.execute(statements.ICEBERG_SCHEMA).fetchall():
            session.execute(statements.CREATE_ICEBERG)
    with closing(_catalog(lake, **properties)) as catalog, _translated():
        catalog.create_namespace_if_not_exists(namespace(lake))


@contextmanager
def mirrors(lake: Lake) -> Iterator[list[Mirror]]:
    """Give the mirror of a lake, if it has Iceberg tables."""
    if not _has_tables(lake):
        yield []
        return
    properties = lake.storage.iceberg_options
    with closing(_catalog(lake, init_catalog_tables="false", **properties)) as catalog:
        yield [IcebergMirror(lake, catalog)]


def _has_tables(lake: Lake) -> bool:
    with opened(lake.dsn) as session:
        if not session.execute(statements.ICEBERG_CATALOG).fetchall():
            return False
        values = (CATALOG, namespace(lake))
        return bool(session.execute(statements.ICEBERG_LAKE, values).fetchall())


def _library() -> tuple[Any, Any]:
    try:
        from pyiceberg.catalog.sql import SqlCatalog
        from sqlalchemy import URL
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is missing, the lake's Iceberg tables need more packages: "
            "pip install 'notifyq[iceberg]'"
        ) from None
    return SqlCatalog, URL


def _catalog(lake: Lake, **properties: str) -> Any:
    catalog, address = _library()
    given: dict[str, Any] = conninfo.conninfo_to_dict(completed(lake.dsn, "notifyq iceberg"))
    # Last: with no other schema in the path, nothing that pyiceberg does reaches ours.
    path = f"-c search_path={statements.ICEBERG}"
    given["options"] = f"{given.get('options') or ''} {path}".strip()
    url = address.create(
        "postgresql+psycopg",
        username=given.pop("user", None),
        password=given.pop("password", None),
        query={name: str(value) for name, value in given.items()},
    )
    with _translated():
        return catalog(CATALOG, uri=url.render_as_string(hide_password=False), **properties)


@contextmanager
def _translated() -> Iterator[None]:
    from sqlalchemy.exc import DBAPIError

    with translated():
        try:
            yield
        except DBAPIError as error:
            raise error.orig or error from None


class IcebergMirror(Mirror):
    """The Iceberg tables of a lake. Their files lack `day` and `queue`, which their list has."""

    title = "Iceberg"

    def __init__(self, lake: Lake, catalog: Any) -> None:
        super().__init__(lake)
        self._catalog = catalog

    def _name(self, dataset: str) -> tuple[str, str]:
        return (namespace(self.lake), dataset)

    def _opened(self, dataset: str) -> Opened | None:
        from pyiceberg.exceptions import NoSuchTableError, ValidationError
        from pyiceberg.manifest import DataFileContent

        folder = f"{_FOLDER}/{dataset}"
        with self.lake.storage.reading(folder), _translated():
            try:
                table = self._catalog.load_table(self._name(dataset))
                found = [
                    entry.data_file
                    for manifest in _manifests(table)
                    for entry in manifest.fetch_manifest_entry(table.io)
                ]
            except NoSuchTableError:
                return None
            except (FileNotFoundError, EOFError, ValueError, ValidationError) as error:
                # The lake was moved, or a power failure took what the catalog had already.
                raise LakeError(
                    f"{self.lake.storage.name(folder)} cannot be read: {reason(error)}. "
                    "`notifyq spark tidy --repair` makes it anew"
                ) from None
        above = f"{_root(table, dataset)}/"
        files = {
            file.file_path.removeprefix(above): file
            for file in found
            if file.content == DataFileContent.DATA
        }
        folders = {
            part.partition("=")[0]
            for path in files
            if path.startswith(f"{dataset}/")
            for part in path.split("/")[1:-1]
        }
        fault = None
        if len(files) < len(found):
            fault = f"it deletes rows by files of their own. {_REPAIR}"
        elif folders and folders != {field.name for field in table.spec().fields}:
            fault = f"it has other partitions. {_REPAIR}"
        return Opened(table, int(table.properties.get(_BATCH, 0)), files, fault)

    def _reset(self, dataset: str) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        with _translated(), suppress(NoSuchTableError):
            self._catalog.drop_table(self._name(dataset))

    @contextmanager
    def _writing(self, dataset: str) -> Iterator[None]:
        from pyiceberg.exceptions import (
            CommitFailedException,
            TableAlreadyExistsError,
            ValidationException,
        )

        try:
            with self.lake.storage.writing(f"{_FOLDER}/{dataset}"), _translated():
                yield
        except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
            raise ConflictError(error) from None

    def _create(self, dataset: str, change: Change) -> None:
        created = self._catalog.create_table_transaction(
            self._name(dataset),
            change.schema,
            location=self.lake.storage.name(f"{_FOLDER}/{dataset}"),
            properties=_OWN,
        )
        with created.update_spec() as partitions:
            for name in change.folders:
                partitions.add_identity(name)
        # The files have no field ids: their columns are found by name.
        names = created.table_metadata.schema().name_mapping.model_dump_json()
        created.set_properties({"schema.name-mapping.default": names})
        self._commit(created, self.lake.storage.name("").rstrip("/"), change)

    def _add_columns(self, table: Any, schema: pa.Schema) -> None:
        with table.transaction() as altered:
            if not _OWN.items() <= table.properties.items():
                altered.set_properties(_OWN)
            with altered.update_schema() as columns:
                columns.union_by_name(schema)

    def _update(self, dataset: str, table: Any, change: Change) -> None:
        self._commit(table.transaction(), _root(table, dataset), change)

    def _commit(self, transaction: Any, root: str, change: Change) -> None:
        metadata, made = transaction.table_metadata, transaction.update_snapshot()
        with made.overwrite() if change.removed else made.merge_append() as snapshot:
            for file in change.removed.values():
                snapshot.delete_data_file(file)
            for file in change.added:
                snapshot.append_data_file(_data_file(metadata, root, file))
        transaction.set_properties({_BATCH: str(change.batch)})
        _expire(transaction, metadata.snapshots)
        transaction.commit_transaction()

    def tidy(self, dataset: str) -> None:
        """Delete old metadata that no snapshot has: it expired, or a killed run left it."""
        storage, folder = self.lake.storage, f"{_FOLDER}/{dataset}/metadata"
        if (read := self._opened(dataset)) is None:
            return
        table, before = read.table, time.time() - _KEPT.total_seconds()
        selector = pyarrow.fs.FileSelector(storage.key(folder), allow_not_found=True)
        with storage.reading(folder):
            used = {name.rpartition("/")[2] for name in _metadata(table)}
            for found in storage.filesystem.get_file_info(selector):
                is_old = found.mtime is not None and found.mtime.timestamp() < before
                # Others also have statistics here.
                is_known = found.extension not in {"avro", "json"} or found.base_name in used
                if is_old and not is_known:
                    storage.delete(f"{folder}/{found.base_name}")


def _expire(transaction: Any, snapshots: list[Any]) -> None:
    """Take out what was replaced before the time that readers have."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    made = [_EPOCH + timedelta(milliseconds=it.timestamp_ms) for it in snapshots]
    before = datetime.now(UTC) - _KEPT
    if then := max((at for at in made if at <= before), default=None):
        ExpireSnapshots(transaction).older_than(then).commit()


def _root(table: Any, dataset: str) -> str:
    """Return where the lake was when the table was created: names of files begin so."""
    return str(table.location()).removesuffix(f"/{_FOLDER}/{dataset}")


def _manifests(table: Any) -> list[Any]:
    snapshot = table.current_snapshot()
    return [] if snapshot is None else snapshot.manifests(table.io)


def _metadata(table: Any) -> set[str]:
    """Return the names of all files of metadata that snapshots need."""
    used = {table.metadata_location, *(it.metadata_file for it in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        used.add(snapshot.manifest_list)
        used.update(it.manifest_path for it in snapshot.manifests(table.io))
    return used


def _data_file(metadata: Any, root: str, file: LakeFile) -> Any:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import LongType

    bounds = {}
    if file.first_id is not None:
        number = metadata.schema().find_field("id").field_id
        for name, value in (("lower_bounds", file.first_id), ("upper_bounds", file.last_id)):
            bounds[name] = {number: to_bytes(LongType(), value)}
    return DataFile.from_args(
        _table_format_version=metadata.format_version,
        content=DataFileContent.DATA,
        file_path=f"{root}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(_value(getattr(file, it.name)) for it in metadata.spec().fields)),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
        **bounds,
    )


def _value(value: date | str | None) -> int | str | None:
    """Return a value of a partition: days are numbers since 1970."""
    return (value - _EPOCH.date()).days if isinstance(value, date) else value
