"""A tiny run of notifyq and the limit on a real server: each published message is handled."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cases import CASES
from bench.processes import Command, PgbenchResult, Workers, run_pgbench
from bench.results import Results
from bench.run import choose, run
from bench.server import Host, private
from bench.system import Statements
from bench.systems import NotifyQ, every
from bench.workspace import LOST, Sent, Sizes, Workspace, latencies
from notifyq.errors import ConfigurationError, NotifyqError
from support.database import session

TINY = replace(
    Sizes.quick(), warm_up=0.1, clients=(2,), bulk=10, backlog=300, patience=30.0, rate=50,
    steady=1, idle=3, calls=20, dead_rows=100, queues=(1, 3), payloads=(100, 1000), events=300,
    held=0, limited=300, sessions=(2,),
)  # fmt: skip


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pgbench run for a whole second once only, then for a number of transactions."""
    lengths: list[float | None] = []

    def run_briefly(
        *args: str, seconds: float | None = None, **options: Any
    ) -> Coroutine[Any, Any, PgbenchResult]:
        lengths.append(seconds)
        if len(lengths) == 1:
            return run_pgbench(*args, seconds=seconds, **options)
        return run_pgbench(*args, **{"transactions": 32} | options)

    monkeypatch.setattr("bench.cases.run_pgbench", run_briefly)
    monkeypatch.setattr("bench.streams.run_pgbench", run_briefly)


@pytest.mark.timeout(240)
async def test_a_run_measures_its_cases(server: str, brief: None) -> None:
    steps: list[str] = []
    kept: list[Results] = []
    streams = ["stream-publish", "stream-read", "stream-idle", "stream-held"]
    cases, systems = choose(
        [
            "publish",
            "insert",
            "drain",
            "steady",
            "idle",
            "held",
            *streams,
            "ceiling",
            "limits",
            "steps",
            "encryption",
        ],
        ["notifyq", "limit"],
    )
    results = await run(
        server,
        cases,
        systems,
        TINY,
        lambda what, step, number: steps.append(f"{step + 1} of {number}: {what}"),
        kept.append,
    )
    assert not results.not_run
    assert not results.failures
    assert not results.not_measured()
    assert kept == [results]
    assert steps[-1] == "16 of 16: round 1 of 1, encryption: notifyq"
    assert {sample.case for sample in results.samples} == {case.name for case in cases}
    assert {sample.system for sample in results.samples if sample.case == "publish"} == {
        "notifyq", "notifyq publish()", "bare INSERT",
    }  # fmt: skip
    published = {sample.system for sample in results.samples if sample.case == "stream-publish"}
    assert published == {"notifyq", "notifyq publish()", "notifyq, read as seldom as pgq"}
    beside = {(it.system, it.variant) for it in results.samples if it.case == "publish"}
    assert beside >= {
        ("bare INSERT", "2, 2 workers"), ("notifyq", "2, 2 workers"),
        ("notifyq publish()", "2, 1 worker"), ("notifyq", "bulk, 1 worker"),
    }  # fmt: skip
    limits = [sample for sample in results.samples if sample.case == "limits"]
    assert {sample.system for sample in limits} >= {"notifyq", "notifyq, fair", "notifyq, rate"}
    assert {sample.variant for sample in limits} == {
        "100 keys, 2 sessions",
        "1500 keys, 2 sessions",
    }
    assert all(sample.values["server_cpu"] > 0 for sample in limits)
    assert len({it.system for it in results.samples if it.case == "steps"}) == 4
    encryption = {(it.system, it.variant) for it in results.samples if it.case == "encryption"}
    assert ("notifyq, encrypted", "publish") in encryption
    assert len(encryption) == 4
    for sample in results.samples:
        assert "left" not in sample.values, f"{sample} has messages that were not handled"
        assert sample.values.get("rate", 1) > 0
    latencies = {
        (sample.case, sample.variant): len(sample.latencies)
        for sample in results.samples
        if sample.case in {"steady", "idle", "stream-idle"}
    }
    assert latencies == {
        (case, f"{before}from the {moment}"): number
        for case, before, number in (
            ("steady", "50/s, ", 50),
            ("idle", "", 3),
            ("stream-idle", "", 3),
        )
        for moment in ("call", "reply")
    }
    async with session(server) as connection:
        mine = f"notifyq_bench_{os.getpid()}"
        assert not await connection.fetchval(
            "select count(*) from pg_database where starts_with(datname, $1)", mine
        )


@pytest.mark.timeout(240)
async def test_a_run_measures_scale_and_cost(server: str, brief: None) -> None:
    cases, systems = choose(["scale", "payloads", "queues", "keys", "cost"], ["notifyq"])
    results = await run(server, cases, systems, TINY, lambda *_: None)
    assert not results.failures
    assert not results.not_measured()
    assert {(it.case, it.variant, it.system) for it in results.samples} == {
        ("scale", "1 process", "notifyq"), ("scale", "2 processes", "notifyq"),
        ("payloads", "100 bytes", "notifyq"), ("payloads", "1000 bytes", "notifyq"),
        ("queues", "1 queue", "notifyq"), ("queues", "3 queues", "notifyq"),
        ("keys", "10000 keys", "notifyq"), ("keys", "10000 keys", "notifyq, ordered"),
        ("keys", "1500 keys", "notifyq"), ("keys", "1500 keys", "notifyq, fair"),
        ("cost", "published singly", "notifyq"), ("cost", "10 a statement", "notifyq"),
    }  # fmt: skip
    for sample in results.samples:
        assert "left" not in sample.values, f"{sample} has messages that were not handled"
        if sample.case == "cost":
            assert min(sample.values[it] for it in ("per_core", "wal", "archive")) > 0
        else:
            assert sample.values["rate"] > 0


async def test_a_drain_ends_with_the_last_commit() -> None:
    with private() as dsn:
        async with Host.open(dsn) as host, session(dsn) as connection:
            await connection.execute("create table waiting as select 1")
            statements = Statements({}, "", "waiting", "waiting")
            workspace = Workspace(host, NotifyQ(), dsn, statements)
            xid = await connection.fetchval(
                "with gone as (delete from waiting) select pg_current_xact_id()::text::xid"
            )
            ended, left = await workspace.drained(connection, Workers(), 10)
            assert left == 0
            assert ended == await connection.fetchval("select pg_xact_commit_timestamp($1)", xid)


async def test_a_load_that_commits_nothing_runs_again_and_then_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = [f"number of transactions actually processed: {n}\ntps = {n}.0" for n in (0, 7, 0, 0)]
    lengths: list[str] = []

    async def call(command: Command, timeout: None) -> str:
        lengths.append(command.arguments[command.arguments.index("-T") + 1])
        return outputs.pop(0)

    monkeypatch.setattr("bench.processes.call", call)
    found = await run_pgbench("postgresql://me@host/db", "select 1;", clients=64, seconds=1)
    assert (found.transactions, lengths) == (7, ["1", "6"])
    with pytest.raises(NotifyqError, match=r"^pgbench has committed nothing$"):
        await run_pgbench("postgresql://me@host/db", "select 1;", clients=64, seconds=1)


def test_a_handler_may_begin_before_its_publisher_has_the_reply() -> None:
    workers = Workers()
    workers.begun[1] = 10.5
    sent = {1: Sent(10.0, 11.0), 2: Sent(12.0, 13.0)}
    assert dict(latencies(workers, sent)) == {
        "from the call": [0.5, LOST], "from the reply": [-0.5, LOST],
    }  # fmt: skip


async def test_a_system_that_fails_does_not_end_the_run(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commands(_system: NotifyQ, _dsn: str, _processes: int) -> list[Command]:
        return [Command([sys.executable, "-c", "print('no such thing')"], Path.cwd())]

    monkeypatch.setattr(NotifyQ, "commands", commands)
    cases, systems = choose(["idle"], ["notifyq"])
    results = await run(server, cases, systems, TINY, lambda *_: None)
    [failure] = results.failures
    assert (failure.case, failure.system, failure.round) == ("idle", "notifyq", 0)
    assert failure.reason == "a worker has ended: no such thing"
    assert results.not_measured() == ["idle"]


def test_a_case_that_no_chosen_system_has_is_an_error() -> None:
    reason = r"case 'ceiling' does not apply to notifyq, pgq: it needs --system limit$"
    with pytest.raises(ConfigurationError, match=reason):
        choose(["drain", "ceiling"], ["pgq", "notifyq"])
    with pytest.raises(ConfigurationError, match=r"needs --system notifyq or pgq$"):
        choose(["stream-read"], ["pgboss"])


def test_without_named_cases_all_that_apply_are_chosen() -> None:
    assert [case.name for case in choose([], ["limit"])[0]] == [
        "publish", "insert", "flush", "ceiling",
    ]  # fmt: skip
    cases, systems = choose([], [])
    assert [case.name for case in cases] == list(CASES)
    assert [system.name for system in systems] == [system.name for system in every()]


def test_the_case_limits_measures_notifyq() -> None:
    cases, systems = choose(["limits"], ["notifyq"])
    assert [(case.name, system.name) for case in cases for system in systems] == [
        ("limits", "notifyq")
    ]
