"""The adapter for the public benchmark on a real server, and what its runner computes."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bench.hardbyte import harness, picture, run
from bench.results import Results, Sample
from notifyq import __version__
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.server import Server
from support.database import session

FOLDER = Path(run.__file__).parent / "notifyq_bench"
MANIFEST = json.loads((FOLDER / "adapter.json").read_text(encoding="utf-8"))
EVERY = 1
LATENCIES = {
    f"{name}_{percentile}_ms"
    for name in ("producer", "producer_call", "subscriber", "claim", "end_to_end")
    for percentile in ("p50", "p95", "p99")
}
RATES = {"enqueue_rate", "completion_rate"}
OBSERVED = {"queue_depth", "running_depth", "producer_target_rate"}
PROMISED = 5
"""Seconds after SIGTERM in which the contract wants an adapter to exit."""


@dataclass
class Replica:
    """An adapter's process, and the records that it has printed so far."""

    process: asyncio.subprocess.Process
    instance: int
    records: list[dict[str, Any]] = field(default_factory=list)

    async def describe(self) -> dict[str, Any]:
        """Read the descriptor, and check it against the manifest."""
        descriptor = await self.record()
        assert descriptor is not None
        assert (descriptor["kind"], descriptor["system"]) == ("descriptor", MANIFEST["system"])
        assert set(descriptor["event_tables"]) > set(MANIFEST["event_tables"])
        assert set(descriptor["extensions"]) == set(MANIFEST["extensions"])
        return descriptor

    async def tick(self) -> dict[str, dict[str, Any]]:
        """Read the records of the next tick, by their metrics, and check them."""
        records: dict[str, dict[str, Any]] = {}
        wanted = len(LATENCIES | RATES) + len(OBSERVED) * (self.instance == 0)
        while len(records) < wanted and (record := await self.record()):
            self.check(record)
            assert record["metric"] not in records
            records[record["metric"]] = record
        if records:
            assert records.keys() == LATENCIES | RATES | (OBSERVED if self.instance == 0 else set())
            assert len({record["t"] for record in records.values()}) == 1
        return records

    async def until(self, metric: str, least: float) -> None:
        """Read ticks until a metric has this value, or a larger one."""
        while (await self.tick())[metric]["value"] < least:
            pass

    def check(self, record: dict[str, Any]) -> None:
        """Check one record against the contract."""
        assert record.keys() == {
            "t", "system", "kind", "subject_kind", "subject", "metric", "value", "window_s",
            "instance_id",
        }  # fmt: skip
        assert (record["system"], record["kind"], record["subject_kind"], record["subject"]) == (
            "notifyq", "adapter", "adapter", "",
        )  # fmt: skip
        assert record["instance_id"] == self.instance
        assert datetime.fromisoformat(record["t"]).tzinfo is not None
        assert record["value"] >= 0
        if record["metric"] in LATENCIES:
            assert record["window_s"] == 30
        elif record["metric"] in OBSERVED:
            assert record["window_s"] == 0
        else:
            assert record["window_s"] > 0

    async def record(self) -> dict[str, Any] | None:
        """Read a record; None at the end of the output."""
        assert self.process.stdout is not None
        if not (line := await self.process.stdout.readline()):
            return None
        record: dict[str, Any] = json.loads(line)
        self.records.append(record)
        return record

    async def end(self) -> None:
        """End the process by SIGTERM within the promised time, and read what is left."""
        self.process.terminate()
        async with asyncio.timeout(PROMISED):
            assert await self.process.wait() == 0
        while await self.tick():
            pass

    def total(self, metric: str) -> float:
        """What a rate adds up to."""
        mine = [record for record in self.records if record.get("metric") == metric]
        return float(sum(record["value"] * record["window_s"] for record in mine))


@asynccontextmanager
async def adapter(dsn: str, **settings: object) -> AsyncIterator[Replica]:
    """Run the adapter as the harness does; kill it at the end if it still runs."""
    settings = {"SAMPLE_EVERY_S": EVERY, "WORKER_COUNT": 4, "BENCH_INSTANCE_ID": 0} | settings
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "main.py",
        cwd=FOLDER,
        env={**os.environ, "DATABASE_URL": dsn, **{k: str(v) for k, v in settings.items()}},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Replica(process, int(str(settings["BENCH_INSTANCE_ID"])))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_two_replicas_fulfil_the_contract(empty_database: str, tmp_path: Path) -> None:
    rate = tmp_path / "rate"
    rate.write_text("100")
    settings = {"PRODUCER_RATE": 100, "PRODUCER_RATE_CONTROL_FILE": rate}
    async with AsyncExitStack() as stack:
        # Both install the schema, as replicas that start together do.
        both = [
            await stack.enter_async_context(
                adapter(empty_database, BENCH_INSTANCE_ID=number, **settings)
            )
            for number in range(2)
        ]
        descriptor, _ = [await replica.describe() for replica in both]
        assert descriptor["db_name"] == empty_database.rpartition("/")[2]
        for replica in both:
            await replica.until("completion_rate", 1)
            assert (await replica.tick())["claim_p50_ms"]["value"] > 0
        # A phase of high load.
        rate.write_text("250.0")
        await both[0].until("producer_target_rate", 250)
        await both[0].until("enqueue_rate", 200)
        for replica in both:
            await replica.end()
    async with session(empty_database) as connection:
        done = await connection.fetchval(
            "select count(*) from messages.message_archive where status = 'success'"
        )
        left = await connection.fetchval("select count(*) from messages.message")
        # The harness reads them all by these names.
        for table in descriptor["event_tables"]:
            assert await connection.fetchval("select to_regclass($1)", table), table
        for index in MANIFEST["event_indexes"]:
            assert await connection.fetchval("select pg_relation_size($1::text::regclass)", index)
    assert sum(replica.total("completion_rate") for replica in both) == pytest.approx(done)
    assert sum(replica.total("enqueue_rate") for replica in both) == pytest.approx(done + left)


async def test_a_producer_can_aim_at_a_depth(database: str) -> None:
    settings = {"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": 300, "BENCH_QUEUE_COUNT": 2}
    async with adapter(database, **settings, JOB_WORK_MS=50) as replica:
        await replica.describe()
        depths: list[float] = []
        while len(depths) < 3:
            depth = (await replica.tick())["queue_depth"]["value"]
            depths += [depth] * (depth > 0)
        # A batch may be on its way while messages are claimed.
        assert 200 < depths[-1] < 450
        await replica.end()
    async with session(database) as connection:
        queues = await connection.fetch("select queue from messages.queue_info()")
        assert {"bench_0", "bench_1"} < {row["queue"] for row in queues}


async def test_it_ends_while_the_server_is_away(mortal_server: Server) -> None:
    async with adapter(mortal_server.dsn, PRODUCER_RATE=50) as replica:
        await replica.describe()
        await replica.until("completion_rate", 1)
        await asyncio.to_thread(mortal_server.stop)
        while (await replica.tick())["enqueue_rate"]["value"] > 0:
            pass
        await replica.end()


async def test_another_scenario_is_refused() -> None:
    async with adapter("postgresql://nobody@localhost/nothing", SCENARIO="other") as replica:
        assert await replica.process.wait() == 1


def test_percentiles_have_three_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    latencies = importlib.import_module("contract").Latencies()
    assert latencies.percentiles() == {"p50": 0, "p95": 0, "p99": 0}
    for n in range(1, 201):
        latencies.add(n / 1000)
    assert latencies.percentiles() == {"p50": 100, "p95": 190, "p99": 198}
    latencies.add(1.23456, 1000)
    assert latencies.percentiles()["p50"] == 1230


def test_the_image_installs_this_version() -> None:
    assert (FOLDER / "requirements.txt").read_text(encoding="utf-8") == f"notifyq=={__version__}\n"


# The runner


def test_a_server_has_the_settings_of_their_file() -> None:
    conf = (
        "# shared_buffers = 1GB\nlisten_addresses = '*'\nwork_mem = 8MB  # more\nautovacuum = on\n"
    )
    assert harness.settings(conf) == {
        "work_mem": "8MB",
        "autovacuum": "on",
        "listen_addresses": "127.0.0.1",
        "shared_preload_libraries": "",
    }


def test_figures_come_from_their_summary() -> None:
    block = {
        "median_throughput_per_s": 800.0, "jobs_lost": None, "peak_dead_tup": 5,
        "metrics": {"claim_p50_ms": {"median": 2.5, "peak": 9.0, "count": 3}},
    }  # fmt: skip
    summary = {"systems": {"notifyq": {"phases": {"clean": block}}}}
    assert run.figures(summary, "notifyq") == {
        "clean": {"jobs/s": 800.0, "claim p50, ms": 2.5, "dead rows, peak": 5.0}
    }


def test_a_table_shows_medians_and_the_spread() -> None:
    rates = {"notifyq": (1000.0, 4000.0, 2000.0), "pgmq": (3.14159,)}
    samples = [
        Sample("hardbyte", "clean", system, number, {"jobs/s": rate})
        for system, measured in rates.items()
        for number, rate in enumerate(measured)
    ]
    samples.append(Sample("hardbyte", "recovery", "notifyq", 0, {"jobs lost": 0.0}))
    assert run.table(samples)[2:] == [
        "| clean | notifyq | 2,000 [1,000 to 4,000] |  |",
        "| clean | pgmq | 3.14 |  |",
        "| recovery | notifyq |  | 0 |",
    ]


def test_each_round_begins_with_another_system() -> None:
    orders = [run.rotated(["a", "b", "c"], number) for number in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert run.rotated([], 1) == []


def test_what_follows_two_dashes_is_theirs() -> None:
    given = run.parser().parse_args(
        ["--checkout", "x", "--system", "pgmq", "--", "--scenario", "soak", "--replicas", "2"]
    )
    assert given.system == ["pgmq"]
    assert given.arguments == ["--scenario", "soak", "--replicas", "2"]
    assert run.parser().parse_args(["--checkout", "x"]).arguments == []


async def test_a_folder_without_the_harness_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no checkout of the benchmark"):
        await run.run(tmp_path, ["notifyq"], 1, [], tmp_path)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a checkout, and replace installations and the harness."""
    folder = tmp_path / "checkout"
    (folder / "bench_harness").mkdir(parents=True)
    (folder / "bench_harness/orchestrator.py").touch()
    (folder / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=2.0"]\n')

    async def python(requirements: list[str], _name: str) -> Path:
        assert requirements == ["numpy>=2.0", "asyncpg", "lazy-loader"]
        return tmp_path

    def run_one(
        _python: Path, spec: dict[str, Any], arguments: Sequence[str], _folder: Path
    ) -> dict[str, Any]:
        [name] = spec["systems"]
        assert list(arguments) == ["--systems", name, "--pg-image", arguments[3], "--more"]
        if _folder.name == "2-notifyq":
            raise NotifyqError("it has failed")
        return {"systems": {name: {"phases": {"clean": {"jobs_lost": 3, "metrics": {}}}}}}

    monkeypatch.setattr(run, "_python", python)
    monkeypatch.setattr(run, "_run_one", run_one)
    return folder


async def test_a_run_keeps_each_sample_and_why_others_are_missing(
    checkout: Path, tmp_path: Path
) -> None:
    results = await run.run(checkout, ["notifyq", "pgque"], 2, ["--more"], tmp_path)
    assert results.samples == [Sample("hardbyte", "clean", "notifyq", 0, {"jobs lost": 3.0})]
    assert results.not_run == {
        "pgque": "the checkout has no submodule pgque-bench/vendor/pgque",
        "notifyq, round 2": "it has failed",
    }
    assert Results.read(tmp_path / "results.json") == results


def test_figures_of_several_runs_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    samples = [
        Sample("hardbyte", "clean", "notifyq", number, {"depth": number}) for number in (1, 3)
    ]
    Results("", {}, {}, {}, samples=samples).write(tmp_path / "results.json")
    picture.draw([(tmp_path, "depth", "Depth"), (tmp_path, "depth", "Again")], tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
