"""All mirrors of a lake: its Delta tables, and its Iceberg tables where it has them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from notifyq.spark.lake import iceberg
from notifyq.spark.lake.delta import DeltaMirror
from notifyq.spark.lake.lake import ARCHIVE, Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifyq.spark.lake.mirror import Mirror


def check(lake: Lake, *datasets: str) -> None:
    """Raise LakeError if a table of a mirror does not follow from the lists of the database.

    Another program changed it, or the database lost batches by a restore.
    """
    with _all(lake) as mirrors:
        for mirror in mirrors:
            for dataset in datasets:
                mirror.check(dataset)


def follow(lake: Lake, *datasets: str, is_repair: bool = False) -> None:
    """Update tables of each mirror to the files of the lake; without names its archive.

    Raises LakeError like check(), unless it is a repair: that undoes the changes of others.
    """
    with _all(lake) as mirrors:
        for mirror in mirrors:
            for dataset in datasets or (ARCHIVE,):
                mirror.follow(dataset, is_repair=is_repair)


def keep_iceberg(lake: Lake) -> None:
    """Let a lake have Iceberg tables from now on."""
    iceberg.keep(lake)


def tidy(lake: Lake) -> None:
    """Delete what the mirrors no longer need of their own files."""
    with _all(lake) as mirrors:
        for mirror in mirrors:
            for dataset in lake.tables():
                mirror.tidy(dataset)


@contextmanager
def _all(lake: Lake) -> Iterator[list[Mirror]]:
    with iceberg.mirrors(lake) as found:
        yield [DeltaMirror(lake), *found]
