"""Counts of finished messages: by hour, with histograms of times, by fingerprint and by worker.

The same functions count a file in a thread or a task of Spark, and add up the counts of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from notifyq.spark.analysis.fingerprints import fingerprint

COLUMNS = (
    "queue", "type", "status", "attempts", "created_at", "available_at", "locked_at",
    "archived_at", "handled_by", "details", "cancelled_by",
)  # fmt: skip
"""The columns of an archived message that are read."""

ZERO_BIN = -349
"""The bin of zero: a microsecond is in bin -348."""

_GROWTH = math.log(1.02)
_GROUP = ["bucket_at", "queue", "type", "status"]
_ERROR = ["bucket_at", "queue", "status", "fingerprint"]
_WORKER = ["bucket_at", "queue", "worker"]
_ADDED = (
    "finished", "dead", "retried", "attempts", "waited", "wait_total_us", "ran", "run_total_us",
)  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """Five tables, each with one row for a key."""

    sums: Any
    waits: Any
    runs: Any
    errors: Any
    workers: Any

    @property
    def messages(self) -> int:
        """How many messages were counted."""
        return pc.sum(self.sums["finished"]).as_py() or 0

    @property
    def days(self) -> list[Any]:
        """The days of the buckets, in order."""
        return sorted({at.date() for at in pc.unique(self.sums["bucket_at"]).to_pylist()})


def count(table: Any) -> Counts:
    """Count messages of the archive; the table has at least COLUMNS."""
    status = table["status"].cast(pa.string())
    due = pc.max_element_wise(_instant(table["created_at"]), _instant(table["available_at"]))
    locked, archived = _instant(table["locked_at"]), _instant(table["archived_at"])
    # The condition of messages.dead_message.
    dead = pc.and_(pc.not_equal(status, "success"), pc.is_null(table["cancelled_by"]))
    base = pa.table(
        {
            "bucket_at": pc.floor_temporal(table["archived_at"], unit="hour"),
            "queue": table["queue"].cast(pa.string()),
            "type": pc.fill_null(table["type"].cast(pa.string()), ""),
            "status": status,
            "attempts": table["attempts"].cast(pa.int64()),
            "retried": pc.greater(table["attempts"], 1).cast(pa.int64()),
            "wait": _span(due, locked),
            "run": _span(locked, archived),
            "worker": pc.fill_null(table["handled_by"].cast(pa.string()), ""),
            "dead": dead.cast(pa.int64()),
        }
    )
    return Counts(
        _sums(base),
        _histogram(base, "wait"),
        _histogram(base, "run"),
        _errors(
            base.filter(dead), table["details"].filter(dead), table["archived_at"].filter(dead)
        ),
        _workers(base),
    )


def merge(parts: Iterable[Counts]) -> Counts | None:
    """Add up counts; None if there are none."""
    found = list(parts)
    if not found:
        return None
    tables = {
        field.name: pa.concat_tables([getattr(part, field.name) for part in found])
        for field in fields(Counts)
    }
    latest = tables["errors"].sort_by("last_at")
    return Counts(
        _total(tables["sums"], _GROUP, sums=_ADDED, largest=("wait_max_us", "run_max_us")),
        _total(tables["waits"], [*_GROUP, "bin"], sums=("n",)),
        _total(tables["runs"], [*_GROUP, "bin"], sums=("n",)),
        _total(
            latest,
            _ERROR,
            sums=("errors",),
            least=("first_at",),
            largest=("last_at",),
            last=("sample",),
        ),
        _total(tables["workers"], _WORKER, sums=("finished", "dead", "run_total_us")),
    )


def rollup_table(counts: Counts) -> Any:
    """Return the rows of notifyq.rollup, without lake and span."""
    rows = counts.sums
    lists = {}
    for kind, histogram in (("wait", counts.waits), ("run", counts.runs)):
        lists[kind] = (
            histogram.sort_by("bin")
            .group_by(_GROUP, use_threads=False)
            .aggregate([("bin", "list"), ("n", "list")])
        )
        # A join cannot carry lists: it joins the index of each.
        indexes = pa.array(np.arange(len(lists[kind])))
        keys = lists[kind].select(_GROUP).append_column(f"{kind}_index", indexes)
        rows = rows.join(keys, keys=_GROUP, join_type="left outer")
    for kind, found in lists.items():
        indexes = rows[f"{kind}_index"].combine_chunks()
        rows = rows.drop_columns([f"{kind}_index"])
        for name, column in (("bins", "bin_list"), ("counts", "n_list")):
            values = found[column].combine_chunks().take(indexes)
            rows = rows.append_column(f"{kind}_{name}", values)
    return rows


def records(table: Any) -> list[dict[str, Any]]:
    """Return rows for JSON: instants as texts, empty arrays for null."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            # Cast by Arrow: Python would create an object for each value.
            table = table.set_column(index, field.name, table[field.name].cast(pa.string()))
    found: list[dict[str, Any]] = table.to_pylist()
    for name in table.column_names:
        if pa.types.is_list(table.schema.field(name).type) and table[name].null_count:
            for row in found:
                row[name] = row[name] or []
    return found


def _instant(column: Any) -> Any:
    """Return microseconds since the epoch: most kernels do not support time zones."""
    return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _span(since: Any, until: Any) -> Any:
    """Return a duration, never negative, also where a clock was set back."""
    return pc.max_element_wise(pc.subtract(until, since), 0, skip_nulls=False)


def bins(us: Any) -> Any:
    """Return the bin of each time in microseconds, as a numpy array."""
    times = np.asarray(us, dtype=np.float64)
    found = np.full(len(times), ZERO_BIN, dtype=np.int32)
    some = times > 0
    found[some] = np.ceil(np.log(times[some] / 1000.0) / _GROWTH).astype(np.int32)
    return found


def _sums(base: Any) -> Any:
    grouped = base.group_by(_GROUP).aggregate(
        [
            ([], "count_all"), ("dead", "sum"), ("retried", "sum"), ("attempts", "sum"),
            ("wait", "count"), ("wait", "sum"), ("wait", "max"),
            ("run", "count"), ("run", "sum"), ("run", "max"),
        ]
    )  # fmt: skip
    named = {
        "finished": "count_all", "dead": "dead_sum", "retried": "retried_sum",
        "attempts": "attempts_sum",
        "waited": "wait_count", "wait_total_us": "wait_sum", "wait_max_us": "wait_max",
        "ran": "run_count", "run_total_us": "run_sum", "run_max_us": "run_max",
    }  # fmt: skip
    return pa.table(
        {name: grouped[name] for name in _GROUP}
        | {name: pc.fill_null(grouped[of], 0) for name, of in named.items()}
    )


def _histogram(base: Any, kind: str) -> Any:
    known = base.select([*_GROUP, kind]).filter(pc.is_valid(base[kind]))
    known = known.append_column("bin", pa.array(bins(known[kind].to_numpy())))
    grouped = known.group_by([*_GROUP, "bin"]).aggregate([([], "count_all")])
    return grouped.rename_columns([*_GROUP, "bin", "n"])


def _errors(base: Any, details: Any, archived_at: Any) -> Any:
    # Each distinct text gets its fingerprint once.
    texts = details.cast(pa.string()).combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    prints = pa.array([fingerprint(text) for text in texts.dictionary.to_pylist()], pa.string())
    table = pa.table(
        {name: base[name] for name in ("bucket_at", "queue", "status")}
        | {
            "fingerprint": prints.take(texts.indices),
            "at": archived_at.cast(pa.timestamp("us", "UTC")),
            "sample": pc.utf8_slice_codeunits(details.cast(pa.string()), 0, 1000),
        }
    ).sort_by("at")
    grouped = table.group_by(_ERROR, use_threads=False).aggregate(
        [([], "count_all"), ("at", "min"), ("at", "max"), ("sample", "last")]
    )
    return grouped.select([*_ERROR, "count_all", "at_min", "at_max", "sample_last"]).rename_columns(
        [*_ERROR, "errors", "first_at", "last_at", "sample"]
    )


def _workers(base: Any) -> Any:
    grouped = base.group_by(_WORKER).aggregate([([], "count_all"), ("dead", "sum"), ("run", "sum")])
    return pa.table(
        {name: grouped[name] for name in _WORKER}
        | {
            "finished": grouped["count_all"],
            "dead": grouped["dead_sum"],
            "run_total_us": pc.fill_null(grouped["run_sum"], 0),
        }
    )


def _total(
    table: Any,
    key: list[str],
    *,
    sums: tuple[str, ...] = (),
    least: tuple[str, ...] = (),
    largest: tuple[str, ...] = (),
    last: tuple[str, ...] = (),
) -> Any:
    how = {"sum": sums, "min": least, "max": largest, "last": last}
    wanted = [(name, by) for by, names in how.items() for name in names]
    grouped = table.group_by(key, use_threads=not last).aggregate(wanted)
    total = pa.table(
        {name: grouped[name] for name in key}
        | {name: grouped[f"{name}_{by}"] for name, by in wanted}
    )
    # A task sends this: chunks are slices of common buffers, and each would be sent with all bytes.
    return total.combine_chunks()
