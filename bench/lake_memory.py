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

from bench.machine import memory

_FILL = """
insert into messages.message_archive (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, key, message, headers, details
)
select i, at, at, at + interval '5 ms', at + interval '20 ms', 1, 0, 1,
  case when i %% 100 = 0 then 'failed' else 'success' end::messages.message_status,
  'queue-' || i %% 6, 'kind-' || i %% 4, 'worker-' || i %% 24, 'customer-' || i %% 9973,
  jsonb_build_object('n', i, 'note', md5(i::text) || repeat('x', 60)), '{}',
  case when i %% 100 = 0 then 'timeout ' || i end
from (
  select i, '2026-03-01 00:00+00'::timestamptz + interval '431999 s' * (i::float8 / %(rows)s) as at
  from generate_series(1, %(rows)s) as i
) as g
"""
_DAYS = """
select notifyq.make_partition('message_archive', 'archived_at', g.day::date)
from generate_series(date '2026-03-01', '2026-03-05', '1 day') as g (day)
"""
_GONE = """
delete from messages.message_archive
where key = 'customer-1' or (status = 'failed' and id %% 1000 = 0)
"""
"""The first are also forgotten in the lake; of the others only the rows show what is missing."""


STEPS = (
    *("export", "export on Spark", "roll-up", "roll-up on Spark", "tidy", "forget, dry run"),
    *("forget", "report", "prune"),
)


def _do(step: str, lake: str, dsn: str) -> object:
    from notifyq.archive.forget import Wanted
    from notifyq.spark import pipelines
    from notifyq.spark.lake import export, forget

    export._MOST_BLOCKS = 8192  # several files of a day and queue, which `tidy` merges
    wanted = Wanted("customer-1", None, None)
    engine: pipelines.Engine = pipelines.LocalEngine(2)
    if step.endswith("Spark"):
        engine = pipelines.SparkEngine(pipelines.session("bench", master="local[2]"))
    report = [sys.executable, *f"-m notifyq report --dsn {dsn} --out {lake}.html".split()]
    return {
        "export": lambda: export.export(dsn, lake, engine=engine),
        "export on Spark": lambda: export.export(dsn, f"{lake}-2", engine=engine),
        "roll-up": lambda: pipelines.rollup(dsn, lake, engine=engine),
        "roll-up on Spark": lambda: pipelines.rollup(dsn, lake, engine=engine, rebuild=True),
        "tidy": lambda: pipelines.tidy(dsn, lake),
        "forget, dry run": lambda: forget.forget(dsn, lake, wanted, dry_run=True),
        "forget": lambda: forget.forget(dsn, lake, wanted),
        "report": lambda: os.execv(sys.executable, report),  # noqa: S606  it is measured alone
        "prune": lambda: pipelines.prune(dsn, lake),
    }[step]()


def _resident(root: int) -> list[int]:
    """Return the resident bytes of a process, of its children, and of their descendants."""
    found = [0, 0, 0]
    with suppress(OSError):
        found[0] = _own(root)
        for file in Path(f"/proc/{root}/task").glob("*/children"):
            for child in map(int, file.read_text().split()):
                found[1] += _own(child)
                found[2] += memory(child) - _own(child)
    return found


def _own(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Fill the database, do each step, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.lake_memory", description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("NOTIFYQ_DSN"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        sys.stderr.write(f"{_do(*given.step, given.dsn)}\n")
        return
    import psycopg

    with (
        psycopg.connect(given.dsn, autocommit=True) as session,
        tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder,
    ):
        if not session.execute("select 1 from messages.message_archive limit 1").fetchone():
            session.execute(_DAYS)
            session.execute(_FILL, {"rows": given.rows})
            session.execute("vacuum analyze messages.message_archive")
        for name in STEPS:
            if name == "prune":
                session.execute(_GONE)
            words = ["--dsn", given.dsn, "--step", name, f"{folder}/lake"]
            begun = time.monotonic()
            with subprocess.Popen(  # noqa: S603  this program
                [sys.executable, "-m", "bench.lake_memory", *words]
            ) as ran:
                most = [0, 0, 0]
                while ran.poll() is None:
                    most = list(map(max, most, _resident(ran.pid)))
                    time.sleep(0.05)
            if ran.returncode:
                raise SystemExit(f"{name} failed")
            sizes = "".join(f"{size / 2**20:>8,.0f}" for size in most)
            sys.stdout.write(f"{name:<16}{time.monotonic() - begun:>7.1f} s {sizes} MB\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
