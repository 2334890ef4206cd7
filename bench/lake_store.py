"""Export into a store relative to a folder: `python -m bench.lake_store --lake s3://bucket/lake`.

The archive of the database is exported into new lakes, a folder and the store in turn. The store
is that of the environment, such as AWS_ENDPOINT_URL=http://127.0.0.1:5000 for `moto_server`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import uuid
from contextlib import closing
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from notifyq.spark.pipelines import Engine


def measure(dsn: str, lake: str, engine: Engine | None = None) -> tuple[int, float]:
    """Return messages and seconds of an export into a new lake, which is then forgotten."""
    from notifyq.spark.connection import connect
    from notifyq.spark.pipelines import Lake, export

    summary = export(dsn, lake, engine=engine)
    with closing(connect(dsn)) as session:
        session.execute("select messages.forget_lake(%s)", (Lake(dsn, lake).id,))
    return summary.rows, summary.seconds


def compare(rates: dict[str, list[float]]) -> None:
    """Print messages in a second of two ways, and how the second is relative to the first."""
    for name, found in rates.items():
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        sys.stdout.write(f"{name}: {median(found):,.0f} messages a second, {spread}\n")
    (first, base), (second, other) = rates.items()
    ratios = [a / b for a, b in zip(other, base, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    sys.stdout.write(f"{second} relative to {first}: {median(ratios):.2f}, {spread}\n")


def main() -> None:
    """Print messages in a second of each, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m bench.lake_store", description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("NOTIFYQ_DSN"))
    parser.add_argument("--lake", required=True, help="where lakes are made in the store")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rates: dict[str, list[float]] = {"folder": [], "store": []}
    with tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
        for number in range(given.rounds + 1):
            for name, root in (("folder", folder), ("store", given.lake)):
                rows, seconds = measure(given.dsn, f"{root}/{uuid.uuid4()}")
                if number:  # the first one imports libraries
                    rates[name].append(rows / seconds)
    compare(rates)


if __name__ == "__main__":
    main()
