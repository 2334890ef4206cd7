"""The process that Spark forks its workers from, with what each of them needs loaded once.

Only what starts no thread: pyarrow and numpy do, and what is forked then has none of them.
"""

from __future__ import annotations

import gc

import adbc_driver_manager  # noqa: F401 - to be there
import psycopg  # noqa: F401 - to be there
from pyspark.daemon import manager

import pyspark_notifyq  # noqa: F401 - to be there

if __name__ == "__main__":
    # A worker collects garbage after each task: it need not look through what is loaded here.
    gc.freeze()
    manager()
