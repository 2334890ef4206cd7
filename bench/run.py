"""A run: all cases in several rounds, with the systems in rotating order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from notifyq.errors import ConfigurationError, NotifyqError

from . import machine
from .cases import CASES, Case
from .results import Failure, Results, Sample
from .server import Host, private
from .system import NotRunError, System
from .systems import every
from .workspace import Sizes, Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

Progress = Callable[[str, int, int], None]
"""Called with the current step, the number of steps before it, and their total."""


def cache() -> Path:
    """Return the folder of the peers' software, which is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "notifyq-bench"


def sizes(*, quick: bool, rounds: int | None) -> Sizes:
    """Return the sizes of a quick or a full run."""
    chosen = Sizes.quick() if quick else Sizes()
    return replace(chosen, rounds=rounds) if rounds else chosen


def choose(cases: Sequence[str], systems: Sequence[str]) -> tuple[list[Case], list[System]]:
    """Return the cases and systems of these names; without names all that apply.

    Raises ConfigurationError for an unknown name and for a named case that none of the systems has.
    """
    known = {system.name: system for system in every()}
    for what, names, table in (("case", cases, CASES), ("system", systems, known)):
        if unknown := [name for name in names if name not in table]:
            raise ConfigurationError(
                f"there is no {what} {unknown[0]!r}: there are {', '.join(table)}"
            )
    chosen = [system for name, system in known.items() if not systems or name in systems]
    applicable = {
        name: [system.name for system in known.values() if case.applies(system)]
        for name, case in CASES.items()
    }
    runnable = [name for name in CASES if any(system.name in applicable[name] for system in chosen)]
    for name in cases:
        if name not in runnable:
            raise ConfigurationError(
                f"case {name!r} does not apply to {', '.join(it.name for it in chosen)}: it needs "
                f"--system {' or '.join(applicable[name])}"
            )
    return [CASES[name] for name in runnable if not cases or name in cases], chosen


async def run(
    dsn: str | None,
    cases: Sequence[Case],
    systems: Sequence[System],
    sizes: Sizes,
    progress: Progress,
    keep: Callable[[Results], None] = lambda _: None,
) -> Results:
    """Measure and return the results; call `keep` with them after each round.

    Without a DSN it makes a private server. It removes all that it made, also after an error.
    """
    if dsn is not None and "://" not in dsn:
        raise ConfigurationError("--dsn is not a URL like postgresql://me@host/db")
    with contextlib.nullcontext(dsn) if dsn else private() as address:
        async with Host.open(address) as host:
            results = Results(
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                machine=machine.describe(),
                settings=await host.settings(),
                options={"cases": [case.name for case in cases], **asdict(sizes)},
            )
            workspaces = await _prepare(host, systems, results, progress)
            await _measure(workspaces, cases, sizes, results, progress, keep)
    return results


async def _prepare(
    host: Host, systems: Sequence[System], results: Results, progress: Progress
) -> list[Workspace]:
    workspaces = []
    for number, system in enumerate(systems):
        progress(f"preparing {system.name}", number, len(systems))
        try:
            version = await system.install(cache())
            dsn = await host.create_database(system.name)
            workspaces.append(Workspace(host, system, dsn, await system.prepare(dsn)))
            results.systems[system.name] = f"{version}: {system.about}"
        except NotRunError as error:
            results.not_run[system.name] = str(error)
        except (NotifyqError, asyncpg.PostgresError) as error:
            results.not_run[system.name] = f"cannot be prepared: {error}"
    return workspaces


async def _measure(
    workspaces: Sequence[Workspace],
    cases: Sequence[Case],
    sizes: Sizes,
    results: Results,
    progress: Progress,
    keep: Callable[[Results], None],
) -> None:
    steps = [
        (number, case, workspace)
        for number in range(sizes.rounds)
        for case in cases
        for workspace in _rotated(workspaces, number)
        if case.applies(workspace.system)
    ]
    for step, (number, case, workspace) in enumerate(steps):
        name = workspace.system.name
        progress(f"round {number + 1} of {sizes.rounds}, {case.name}: {name}", step, len(steps))
        try:
            async for measured in case.measure(workspace, sizes):
                sample = Sample(case=case.name, round=number, **asdict(measured))
                results.samples.append(sample)
        except (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            # A timeout has no text.
            reason = str(error) or type(error).__name__
            results.failures.append(Failure(case.name, name, number, reason))
        if step + 1 == len(steps) or steps[step + 1][0] != number:
            keep(results)


def _rotated(workspaces: Sequence[Workspace], number: int) -> list[Workspace]:
    """Return them in another order in each round: the first system runs on a cooler machine."""
    first = number * max(1, len(workspaces) // 3) % max(1, len(workspaces))
    return [*workspaces[first:], *workspaces[:first]]
