"""A run: one fault after the other on private servers, each checked in the end, and the report."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notifyq.chaos.checker import CheckResult, judge
from notifyq.chaos.final import read_final
from notifyq.chaos.history import BRIEF, ChaosError, percentile, recoveries
from notifyq.chaos.load import Load
from notifyq.chaos.proxy import Proxy
from notifyq.chaos.rig import Rig
from notifyq.chaos.server import Server, programs
from notifyq.chaos.workers import WorkerProcess
from notifyq.errors import NotifyqError
from notifyq.schema import install
from notifyq.server.binaries import version

if TYPE_CHECKING:
    from notifyq.chaos.faults import Fault

_WORKERS = {"NOTIFYQ_RETRY_FOR": "2m", "NOTIFYQ_GRACE": "5s"}
"""Variables of the workers' environment; a fault may override them."""
_EMPTY = "truncate messages.message, messages.message_archive, notifyq.redrive"
_COUNTS = (
    *("attempts", "lost", "doubled_archive", "doubled_execution"),
    *("unexpected", "false_acknowledgement"),
)
COLUMNS = (
    *("fault", "messages", "lost", "doubled archive", "doubled execution", "unexpected"),
    *("false acks", "failed publishes", "figures", "result"),
)
"""Columns of the table."""


@dataclass(slots=True, kw_only=True)
class Row:
    """The result of one fault."""

    fault: str
    seconds: float = 0
    """From the start of its workers to the result."""
    result: CheckResult | None = None
    failed_publishes: int = 0
    """Publications without an acknowledgement; some may have succeeded."""
    injections: list[dict[str, Any]] = field(default_factory=list)
    """Each with its name and the choices made by the seed."""
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Violations, and expectations of the fault that were not met."""
    skipped: str | None = None
    """Why this machine cannot do it."""
    history: str | None = None
    """Where the history of a failed fault is."""

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def cells(self) -> list[str]:
        """The cells of the table."""
        if self.skipped is not None:
            return [self.fault, *[""] * (len(COLUMNS) - 2), f"skipped: {self.skipped}"]
        return [
            self.fault,
            *(str(getattr(self.result, name, "")) for name in _COUNTS),
            str(self.failed_publishes),
            ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items()),
            "ok" if self.ok else f"{len(self.findings)} broken",
        ]


@dataclass(slots=True, kw_only=True)
class Report:
    """The results of all faults of a run."""

    seed: int
    workers: int
    seconds: float
    """How long each fault lasted."""
    machine: str
    faults: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no fault has findings."""
        return all(row.ok for row in self.faults)

    def remarks(self) -> list[str]:
        """The findings and notes of all faults, and how to repeat those that failed."""
        lines = []
        for row in self.faults:
            texts = [*row.findings, *row.notes]
            if row.history is not None:
                texts.append(f"its history is in {row.history}")
            if not row.ok:
                texts.append(
                    f"again: notifyq chaos --seed {self.seed} --faults {row.fault} "
                    f"--workers {self.workers} --minutes {self.seconds / 60:.3g}"
                )
            lines += [f"{row.fault}: {text}" for text in texts]
        return lines

    def write(self, folder: Path) -> None:
        """Write report.json."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = asdict(self) | {"ok": self.ok}
        (folder / "report.json").write_text(f"{json.dumps(facts, indent=2)}\n", encoding="utf-8")


def machine(server: str) -> str:
    """Describe the machine in one line; `server` is the version of PostgreSQL."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"PostgreSQL {server}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, load {load}"
    )


@dataclass(kw_only=True)
class Run:
    """Runs faults and calls `report` with each row.

    It keeps the histories of faults with findings in `kept`, deletes all other files, and leaves no
    process, even after an error.
    """

    faults: Sequence[Fault]
    seed: int
    seconds: float
    """How long each fault lasts."""
    workers: int
    kept: Path
    report: Callable[[Row], None]

    def __post_init__(self) -> None:
        self._server: Server | None = None
        self._cluster = contextlib.AsyncExitStack()
        self._clusters = 0
        self._binaries = programs()

    async def run(self) -> Report:
        """Run all faults and return the report."""
        report = Report(
            seed=self.seed,
            workers=self.workers,
            seconds=self.seconds,
            machine=machine(version(self._binaries)),
        )
        with tempfile.TemporaryDirectory(prefix="notifyq-chaos-", ignore_cleanup_errors=True) as at:
            home = Path(at)
            # Under root, the server runs as another user and must be able to enter.
            home.chmod(0o711)
            try:
                for fault in self.faults:
                    row = await self._one(fault, home)
                    report.faults.append(row)
                    self.report(row)
            finally:
                await self._discard()
        return report

    async def _one(self, fault: Fault, home: Path) -> Row:
        row = Row(fault=fault.name, skipped=fault.lacking())
        if row.skipped is not None:
            return row
        began = time.monotonic()
        history = home / "history" / fault.name
        history.mkdir(parents=True)
        if fault.is_brief:
            (history / BRIEF).touch()
        try:
            async with self._serving(fault, home) as server:
                await self._judge(fault, server, history, row)
        except Exception as error:  # noqa: BLE001  the other faults still run
            (history / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            what = str(error) if isinstance(error, NotifyqError) else repr(error)
            row.findings.append(f"the fault did not complete: {what}")
        if not row.ok:
            kept = self.kept / fault.name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(history, kept)
            row.history = str(kept)
        shutil.rmtree(history)
        row.seconds = time.monotonic() - began
        return row

    async def _judge(self, fault: Fault, server: Server, folder: Path, row: Row) -> None:
        async with Proxy(server.dsn) as proxy:
            rig = self._rig(fault, server, proxy, folder)
            row.notes, row.figures, row.findings = rig.notes, rig.figures, rig.findings
            async with rig.running():
                try:
                    await fault.inject(rig)
                    await rig.settle()
                except ChaosError as error:
                    # The history so far is checked too: it may show the reason.
                    rig.findings.append(str(error))
            if not fault.is_brief:
                async with rig.connection() as connection:
                    (await read_final(connection)).write(folder)
        history = rig.calls()
        await fault.conclude(rig, history)
        rig.figure("stale refused", sum(call.fields.get("held") is False for call in history))
        row.injections = [call.fields for call in history if call.op == "fault"]
        if found := recoveries(history):
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1)):
                rig.figure(f"recovery {name} s", percentile(found, share))
        row.failed_publishes = rig.load.failed
        if not fault.is_brief:
            row.result = judge(folder)
            row.findings += row.result.findings()

    def _rig(self, fault: Fault, server: Server, proxy: Proxy, folder: Path) -> Rig:
        # With its name, so that a fault makes the same choices alone and among others.
        seed = f"{self.seed}:{fault.name}"
        numbers = range(1, self.workers + 1)
        variables = {**_WORKERS, **fault.worker_settings}
        return Rig(
            server=server,
            proxy=proxy,
            folder=folder,
            random=random.Random(seed),  # noqa: S311  a seed repeats the harm
            seconds=self.seconds,
            workers=[WorkerProcess(number, proxy.dsn, folder, variables) for number in numbers],
            load=Load(proxy.dsn, folder, seed, fault.mix, fault.rate, fault.batches),
        )

    @contextlib.asynccontextmanager
    async def _serving(self, fault: Fault, home: Path) -> AsyncIterator[Server]:
        """Give a server with the fault's settings and empty queues."""
        is_own = fault.own_server or fault.synchronous
        if is_own or self._server is None:
            await self._discard()
        server = self._server = self._server or await self._make(fault, home)
        try:
            await self._prepare(server, fault)
            yield server
        except BaseException:
            is_own = True  # its state is unknown
            raise
        finally:
            if is_own:
                await self._discard()

    async def _make(self, fault: Fault, home: Path) -> Server:
        self._clusters += 1
        folder = home / f"server-{self._clusters}"
        folder.mkdir()
        self._cluster.callback(shutil.rmtree, folder, ignore_errors=True)
        self._cluster.callback(fault.clean_up)
        fault.prepare(folder)
        server = Server(folder, self._binaries)
        server.create()
        self._cluster.push_async_callback(server.close)
        # With the default settings: pg_cron can only be installed while it is loaded.
        await server.start()
        async with server.connection() as connection:
            await install(connection)
        return server

    async def _prepare(self, server: Server, fault: Fault) -> None:
        settings, environment = dict(fault.settings), dict(fault.environment)
        if server.pid is None or (settings, environment) != (server.settings, server.environment):
            await server.stop()
            server.settings, server.environment = settings, environment
            await server.start()
        async with server.connection() as connection:
            await connection.execute(_EMPTY)
        if fault.synchronous:
            await server.add_standby(server.folder.with_name(f"standby-{self._clusters}"))

    async def _discard(self) -> None:
        self._server = None
        await self._cluster.aclose()
