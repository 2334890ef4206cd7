"""What is killed: each pipeline with the rows that it gets, and how it is known that none is lost.

A check counts all that the pipeline has ever been given, so that what an earlier kill has doubled
is found as well.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable

from notifyq.spark.connection import connect
from notifyq.spark.engine import LocalEngine, SparkEngine
from notifyq.spark.lake import iceberg
from notifyq.spark.lake.lake import Lake
from notifyq.spark.session import session
from notifyq.spark.source.source import register
from spark.archived import archive, archive_incident

_HAS_ICEBERG = find_spec("pyiceberg") is not None
MANY = 4000
"""Rows that a pipeline gets for each seed."""


class Pipeline:
    """One pipeline; `spark` is None where threads do the work."""

    name: ClassVar[str]
    wants_spark: ClassVar[bool] = False
    """Whether there is no way to run it in threads."""
    has_workers: ClassVar[bool] = True
    """Whether Python workers of Spark do a part of it."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder

    def begin(self) -> None:
        """Make what all seeds need."""

    def prepare(self, seed: int) -> None:
        """Give the rows of a seed."""

    def run(self, seed: int, spark: Any) -> None:
        """Bring them over: in a process that may be killed."""

    def relax(self) -> None:
        """Do what time does, before it runs again."""

    def check(self, seed: int) -> int:
        """Raise unless all rows up to those of this seed are there, once each."""
        raise NotImplementedError

    def fetch(self, query: str, *values: Any) -> list[Any]:
        with closing(connect(self.dsn)) as session:
            cursor = session.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def _engine(self, spark: Any) -> Any:
        return LocalEngine() if spark is None else SparkEngine(spark)

    def _once(self, what: str, wanted: Iterable[Any], found: Iterable[Any]) -> int:
        here, there = Counter(wanted), Counter(found)
        lost, more = here - there, there - here
        if lost or more:
            raise AssertionError(
                f"{what}: {lost.total()} lost, {more.total()} too many, such as "
                f"{sorted(lost)[:3]} and {sorted(more)[:3]}"
            )
        return there.total()

    def _archive(self, seed: int) -> None:
        with closing(connect(self.dsn)) as session:
            for part in range(4):
                first = seed * MANY + part * MANY // 4
                archive(session, MANY // 4, first=first, day=f"2026-03-0{1 + part}")

    def _lake(self) -> Path:
        return self.folder / "lake"

    def _ids(self, table: str) -> list[int]:
        return [row[0] for row in self.fetch(f"select id from messages.{table}")]

    def _export(self) -> None:
        from notifyq.spark.lake.export import export

        export(self.dsn, self._lake())

    def _published(self, queue: str, table: str = "message") -> list[int]:
        found = self.fetch(
            f"select (message ->> 'n')::bigint from messages.{table} where queue = %s", queue
        )
        return [row[0] for row in found]


class Export(Pipeline):
    """The archive into a lake, and the lake's tables for other engines."""

    name = "export"
    has_iceberg = _HAS_ICEBERG

    def prepare(self, seed: int) -> None:
        self._archive(seed)

    def run(self, seed: int, spark: Any) -> None:
        from notifyq.spark.lake.export import export

        export(self.dsn, self._lake(), engine=self._engine(spark), iceberg=self.has_iceberg)

    def check(self, seed: int) -> int:
        here = self._ids("message_archive")
        lake = Lake(self.dsn, self._lake())
        there = lake.dataset().to_table(columns=["id"])["id"].to_pylist()
        if self.has_iceberg:
            with closing(iceberg._catalog(lake)) as catalog:
                scan = catalog.load_table((iceberg.namespace(lake), "archive")).scan()
                self._once("Iceberg table", here, scan.to_arrow()["id"].to_pylist())
        table = DeltaTable(self._lake() / "archive")
        mirror = pa.table(table.scan(columns=["id"]))["id"].to_pylist()
        self._once("Delta table", here, mirror)
        return self._once("lake", here, there)


class Rollup(Pipeline):
    """The lake into counts, in PostgreSQL and in the lake."""

    name = "rollup"

    def prepare(self, seed: int) -> None:
        self._archive(seed)
        self._export()

    def run(self, seed: int, spark: Any) -> None:
        from notifyq.spark.analysis.rollup import rollup

        rollup(self.dsn, self._lake(), engine=self._engine(spark))

    def check(self, seed: int) -> int:
        columns = ["queue", "status", "finished"]
        groups = "select queue, status::text, {} from {} group by 1, 2"
        wanted = self.fetch(groups.format("count(*)", "messages.message_archive"))
        found = self.fetch(groups.format("sum(finished)::bigint", "notifyq.rollup"))
        self._once("notifyq.rollup", wanted, found)
        table = Lake(self.dsn, self._lake()).dataset("rollup").to_table(columns=columns)
        sums = table.group_by(columns[:2]).aggregate([("finished", "sum")]).to_pylist()
        in_lake = [tuple(row[name] for name in (*columns[:2], "finished_sum")) for row in sums]
        self._once("the lake's roll-up", wanted, in_lake)
        return sum(row[2] for row in found)


class Load(Pipeline):
    """A file into a queue."""

    name = "load"

    def begin(self) -> None:
        self.fetch("select messages.create_queue('loaded')")

    def prepare(self, seed: int) -> None:
        for part in range(3):
            numbers = range(seed * MANY + part, (seed + 1) * MANY, 3)
            text = "".join(f"{json.dumps({'n': n})}\n" for n in numbers)
            (self.folder / f"{seed}-{part}.jsonl").write_text(text, encoding="utf-8")

    def run(self, seed: int, spark: Any) -> None:
        from notifyq.spark.publish.load import load
        from notifyq.spark.publish.mapping import Mapping

        files = sorted(self.folder.glob(f"{seed}-*.jsonl"))
        load(self.dsn, f"seed {seed}", files, Mapping("loaded"), engine=self._engine(spark))

    def check(self, seed: int) -> int:
        return self._once("queue", range((seed + 1) * MANY), self._published("loaded"))


class Replay(Pipeline):
    """The lake into a queue."""

    name = "replay"

    def begin(self) -> None:
        self.fetch("select messages.create_queue('again')")

    def prepare(self, seed: int) -> None:
        self._archive(seed)
        self._export()

    def run(self, seed: int, spark: Any) -> None:
        from notifyq.spark.publish.replay import replay

        replay(self.dsn, "all", lake=self._lake(), to="again", engine=self._engine(spark))

    def check(self, seed: int) -> int:
        found = self.fetch(
            "select (headers ->> 'replay_of')::bigint from messages.message where queue = 'again'"
        )
        return self._once("queue", self._ids("message_archive"), (row[0] for row in found))


class Stream(Pipeline):
    """A stream into the lake."""

    name = "stream"

    def begin(self) -> None:
        self.fetch("select messages.create_stream('facts')")

    def prepare(self, seed: int) -> None:
        for _ in range(4):
            self.fetch(
                "select count(*) from messages.publish_many('facts', (select "
                "array_agg(to_jsonb(i)) from generate_series(1, %s) as i))",
                MANY // 4,
            )

    def run(self, seed: int, spark: Any) -> None:
        from notifyq.spark.streaming import stream_to_lake

        stream_to_lake(
            self.dsn, self._lake(), "facts", once=True, rows=MANY // 3, engine=self._engine(spark)
        )

    def check(self, seed: int) -> int:
        table = Lake(self.dsn, self._lake()).dataset("events_facts").to_table(columns=["id"])
        return self._once("lake", self._ids("event"), table["id"].to_pylist())


class Write(Pipeline):
    """A DataFrame into a queue: `df.write.format("notifyq")`."""

    name = "write"
    wants_spark = True

    def begin(self) -> None:
        self.fetch("select messages.create_queue('written')")

    def run(self, seed: int, spark: Any) -> None:
        register(session())
        frame = spark.range(seed * MANY, (seed + 1) * MANY, numPartitions=4)
        writer = frame.selectExpr("struct(id as n) as message").write.format("notifyq")
        options = {"dsn": self.dsn, "load": f"seed {seed}", "queue": "written"}
        writer.options(**options).mode("append").save()

    def check(self, seed: int) -> int:
        return self._once("queue", range((seed + 1) * MANY), self._published("written"))


class Handling(Pipeline):
    """Messages handled on executors: each finished once, however often its function ran."""

    name = "handling"
    wants_spark = True

    def begin(self) -> None:
        # Each kill costs what was claimed an attempt.
        self.fetch("select messages.create_queue('work', max_attempts => 1000)")

    def prepare(self, seed: int) -> None:
        self.fetch(
            "select count(*) from messages.publish_many('work', (select "
            "array_agg(jsonb_build_object('n', %s + i)) from generate_series(0, %s - 1) as i))",
            seed * MANY,
            MANY,
        )

    def run(self, seed: int, spark: Any) -> None:
        from notifyq.spark.handling import handle_queue

        # Workers of Spark know no modules of tests: a function of a function goes there as it is.
        def handled(payload: Any) -> Any:
            return {"seen": payload["n"]}

        handle_queue(spark, self.dsn, "work", handled, quantity=MANY // 2)

    def relax(self) -> None:
        self.fetch(
            "update messages.message set lock_expires_at = now() - interval '1 second', "
            "available_at = now() where queue = 'work'"
        )
        self.fetch("select count(*) from messages.reap(100000)")
        self.fetch("update messages.message set available_at = now() where queue = 'work'")

    def check(self, seed: int) -> int:
        self._once("live", [], self._published("work"))
        bad = self.fetch("select count(*) from messages.message_archive where status <> 'success'")
        if bad != [(0,)]:
            raise AssertionError(f"{bad} messages are dead")
        return self._once(
            "archive", range((seed + 1) * MANY), self._published("work", "message_archive")
        )


class Anomalies(Pipeline):
    """Anomalies: what an undisturbed run finds is kept and published, once each."""

    name = "anomalies"
    has_workers = False

    def prepare(self, seed: int) -> None:
        with closing(connect(self.dsn)) as session:
            for part in range(4):
                first, queue = seed * MANY + part * MANY // 4, f"mail-{seed}-{part}"
                archive_incident(session, self._end(seed), queue=queue, hours=25, first=first)

    def run(self, seed: int, spark: Any) -> None:
        from notifyq.spark.analysis.anomalies import anomalies

        anomalies(self.dsn, until=self._end(seed))

    def check(self, seed: int) -> int:
        from notifyq.spark.analysis.anomalies import anomalies

        wanted = [
            (one.queue, one.metric, one.value, one.details)
            for s in range(seed + 1)
            for one in anomalies(self.dsn, until=self._end(s), report=False).anomalies
        ]
        queues = {f"mail-{s}-{part}" for s in range(seed + 1) for part in range(4)}
        planted = [(queue, metric) for queue in queues for metric in ("wait", "failures", "errors")]
        self._once("found", planted, (one[:2] for one in wanted))
        columns = "queue, metric, value, details"
        self._once("table", wanted, self.fetch(f"select {columns} from messages.anomaly"))
        published = (
            "select t.* from messages.message as m, jsonb_to_record(m.message) "
            "as t (queue text, metric text, value double precision, details text) "
            "where m.queue = 'anomalies'"
        )
        alerts = self._once("alerts", wanted, self.fetch(published))
        linked = (
            "select a.queue, a.metric, a.value, a.details from messages.anomaly as a "
            "join messages.message as m on m.id = a.message_id "
            "and (m.message ->> 'queue', m.message ->> 'metric') = (a.queue, a.metric)"
        )
        self._once("alerts of the table", wanted, self.fetch(linked))
        return alerts

    def _end(self, seed: int) -> datetime:
        # No seed is the past of another: all take as long, and kills strike all of a run.
        return datetime(2026, 3, 1, tzinfo=UTC) - timedelta(days=30 * seed)


ALL: dict[str, type[Pipeline]] = {
    one.name: one for one in (Export, Rollup, Load, Replay, Stream, Write, Handling, Anomalies)
}
