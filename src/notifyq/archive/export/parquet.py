"""Write the CSV rows of COPY into a Parquet file, in groups of rows."""

from __future__ import annotations

from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from notifyq.archive.export.statements import COLUMNS, INSTANTS

_TIME = pa.timestamp("us", "UTC")
_WHOLE = {"id", "lock_token", "xid", "event_id"}
_SMALL = {"priority", "attempts", "max_attempts"}


def _kind(name: str) -> Any:
    if name in INSTANTS:
        return _TIME
    if name in _WHOLE:
        return pa.int64()
    return pa.int32() if name in _SMALL else pa.string()


SCHEMA = pa.schema([pa.field(name, _kind(name)) for name in COLUMNS])
_READ = {name: pa.int64() if name in INSTANTS else _kind(name) for name in COLUMNS}
_BLOCK = 16 * 1024 * 1024
_GROUP = 100_000


class ParquetSink:
    """Takes CSV in chunks of whole rows, with bounded memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._writer = pq.ParquetWriter(file, SCHEMA, compression="zstd")
        self._buffer = bytearray()
        self._held: list[Any] = []
        self._held_rows = self._held_bytes = 0
        self.rows = 0

    def write(self, data: bytes) -> None:
        """Add rows."""
        self._buffer += data
        if len(self._buffer) >= _BLOCK:
            self._parse()

    def close(self) -> None:
        """Write the rows in memory and the end of the file."""
        self._parse()
        self._flush()
        self._writer.close()

    def _parse(self) -> None:
        if not self._buffer:
            return
        data, self._buffer = bytes(self._buffer), bytearray()
        table = pc.read_csv(
            pa.BufferReader(data),
            # One block: a row may be longer than any smaller one.
            read_options=pc.ReadOptions(
                column_names=list(COLUMNS), block_size=len(data) + 1, use_threads=False
            ),
            parse_options=pc.ParseOptions(newlines_in_values=True),
            convert_options=pc.ConvertOptions(
                column_types=_READ,
                # An empty field without quotes is null, with quotes it is an empty text.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        self._held.append(table.cast(SCHEMA))
        self._held_rows += table.num_rows
        self._held_bytes += len(data)
        if self._held_rows >= _GROUP or self._held_bytes >= 4 * _BLOCK:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held))
            self.rows += self._held_rows
            self._held, self._held_rows, self._held_bytes = [], 0, 0
