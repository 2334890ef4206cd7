"""Memory of the pipelines of a lake: `python -m bench.lake_memory --dsn DSN --rows 1000000`.

It fills the archive of an unused database with five days of six queues, and has each step done by a
process of its own. It prints seconds and the peak resident memory: of Python at the driver, of the
JVM, and of the workers in Python together, which share pages that count for each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.machine import memory

if TYPE_CHECKING:
    from collections.abc import Callable

_FILL = """
do $$ begin
  perform notifyq.make_partition('message_archive', 'archived_at', date '2026-03-01' + i)
  from generate_series(0, 4) as i;
end $$;
insert into messages.message_archive (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, key, message, headers, details
)
select i, at, at, at + interval '5 ms', at + interval '20 ms', 1, 0, 1,
  case when i % 100 = 0 then 'failed' else 'success' end::messages.message_status,
  'queue-' || i % 6, 'kind-' || i % 4, 'worker-' || i % 24, 'customer-' || i % 9973,
  jsonb_build_object('n', i, 'note', md5(i::text) || repeat('x', 60)), jsonb_build_object(),
  case when i % 100 = 0 then 'timeout ' || i end
from (
  select i, '2026-03-01 00:00+00'::timestamptz + interval '431999 s' * (i::float8 / {rows}) as at
  from generate_series(1, {rows}) as i
) as g
"""
_GONE = "key = 'customer-1' or (status = 'failed' and id % 1000 = 0)"
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _steps(dsn: str, lake: str, engine: Any) -> dict[str, Callable[[], object]]:
    from notifyq.archive.forget import Wanted
    from notifyq.spark.lake.forget import forget
    from notifyq.spark.pipelines import export, prune, rollup, tidy

    wanted = Wanted("customer-1", None, None)
    report = [sys.executable, *f"-m notifyq report --out {lake}.html".split()]
    return {
        "export": lambda: export(dsn, f"{lake}-1", engine=engine),
        "export on Spark": lambda: export(dsn, f"{lake}-2", engine=engine),
        "export in pieces": lambda: export(dsn, lake, engine=engine),
        "roll-up": lambda: rollup(dsn, lake, engine=engine),
        "roll-up on Spark": lambda: rollup(dsn, lake, engine=engine, rebuild=True),
        "tidy": lambda: tidy(dsn, lake),
        "forget, dry run": lambda: forget(dsn, lake, wanted, dry_run=True),
        "forget": lambda: forget(dsn, lake, wanted),
        "report": lambda: os.execv(sys.executable, report),  # noqa: S606  it is measured alone
        "prune": lambda: prune(dsn, lake),
    }


def _do(step: str, lake: str, dsn: str) -> object:
    from notifyq.spark.lake import export
    from notifyq.spark.pipelines import LocalEngine, SparkEngine, session

    if "pieces" in step:
        export._MOST_BLOCKS = 1024  # many files of a day and queue, which `tidy` merges
    is_on_spark = step.endswith("Spark")
    engine = SparkEngine(session(master="local[2]")) if is_on_spark else LocalEngine(2)
    return _steps(dsn, lake, engine)[step]()


def _resident(root: int) -> list[int]:
    """Return the resident bytes of a process, of its children, and of their descendants."""
    found = [0, 0, 0]
    with suppress(OSError):
        files = Path(f"/proc/{root}/task").glob("*/children")
        children = [int(pid) for file in files for pid in file.read_text().split()]
        all_, below = memory(root), sum(map(memory, children))
        own = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in children)
        found = [all_ - below, own * _PAGE, below - own * _PAGE]
    return found


def main() -> None:
    """Print seconds and megabytes of each step."""
    parser = argparse.ArgumentParser(prog="python -m bench.lake_memory", description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("NOTIFYQ_DSN"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step, lake = given.step
        sys.stderr.write(f"{_do(step, lake, given.dsn)}\n")
        return
    import psycopg

    os.environ["NOTIFYQ_DSN"] = given.dsn
    with (
        psycopg.connect(given.dsn, autocommit=True) as session,
        tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder,
    ):
        session.execute(_FILL.format(rows=given.rows))
        session.execute("vacuum analyze messages.message_archive")
        for name in _steps("", "", None):
            if name == "prune":
                # The first are gone from the lake, too; of the others only the rows show it.
                session.execute(f"delete from messages.message_archive where {_GONE}")
            words = [sys.executable, "-m", "bench.lake_memory", "--step", name]
            begun = time.monotonic()
            with subprocess.Popen([*words, f"{folder}/lake"]) as ran:  # noqa: S603  this program
                most = [0, 0, 0]
                while ran.poll() is None:
                    most = list(map(max, most, _resident(ran.pid)))
                    time.sleep(0.05)
            if ran.returncode:
                raise SystemExit(f"{name} failed")
            sizes = "".join(f"{size / 2**20:>8,.0f}" for size in most)
            sys.stdout.write(f"{name:<17}{time.monotonic() - begun:>7.1f} s {sizes} MB\n")


if __name__ == "__main__":
    main()
