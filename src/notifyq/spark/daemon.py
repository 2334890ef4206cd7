"""The process that Spark forks its workers from, with their common modules imported once.

It imports no module that starts threads, as pyarrow and numpy do: a forked worker would lack them.
"""

from __future__ import annotations

import gc

import adbc_driver_manager  # noqa: F401 - for the workers
import psycopg  # noqa: F401 - for the workers
from pyspark.daemon import manager

import notifyq.spark.source.source  # noqa: F401 - for the workers

if __name__ == "__main__":
    # A worker collects garbage after each task: it need not scan these modules.
    gc.freeze()
    manager()
