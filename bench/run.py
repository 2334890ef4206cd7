"""One run: every case, in several rounds, the systems in an order that rotates."""

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
from .place import Place, Sizes
from .results import Results, Sample
from .server import Host, private
from .system import NotRunError, System
from .systems import every

if TYPE_CHECKING:
    from collections.abc import Sequence

Say = Callable[[str, int, int], None]
"""Told what is done now, how many steps are done, and of how many."""


def cache() -> Path:
    """Return the folder that keeps the peers' software from run to run."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "notifyq-bench"


def sizes(*, quick: bool, rounds: int | None) -> Sizes:
    """Return the sizes of a quick or a full run."""
    chosen = Sizes.quick() if quick else Sizes()
    return replace(chosen, rounds=rounds) if rounds else chosen


def chosen_cases(names: Sequence[str]) -> list[Case]:
    """Return the cases of these names; all, if none is given."""
    if unknown := [name for name in names if name not in CASES]:
        raise ConfigurationError(f"there is no case {unknown[0]!r}: there are {', '.join(CASES)}")
    return [case for case in CASES.values() if not names or case.name in names]


def chosen_systems(names: Sequence[str]) -> list[System]:
    """Return the systems of these names; all, if none is given."""
    systems = every()
    known = [system.name for system in systems]
    if unknown := [name for name in names if name not in known]:
        raise ConfigurationError(f"there is no system {unknown[0]!r}: there are {', '.join(known)}")
    return [system for system in systems if not names or system.name in names]


async def run(
    dsn: str | None,
    cases: Sequence[Case],
    systems: Sequence[System],
    sizes: Sizes,
    say: Say,
    keep: Callable[[Results], None] = lambda _: None,
) -> Results:
    """Measure and return the results; `keep` is given them after each round.

    Without a DSN a private server is made. Whatever was made is taken away again, however it ends.
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
            places = await _prepare(host, systems, results, say)
            await _measure(places, cases, sizes, results, say, keep)
    return results


async def _prepare(
    host: Host, systems: Sequence[System], results: Results, say: Say
) -> list[Place]:
    places = []
    for number, system in enumerate(systems):
        say(f"preparing {system.name}", number, len(systems))
        try:
            version = await system.install(cache())
            dsn = await host.create_database(system.name)
            places.append(Place(host, system, dsn, await system.prepare(dsn)))
            results.systems[system.name] = f"{version}: {system.about}"
        except NotRunError as error:
            results.not_run[system.name] = str(error)
        except (NotifyqError, asyncpg.PostgresError) as error:
            results.not_run[system.name] = f"cannot be prepared: {error}"
    return places


async def _measure(
    places: Sequence[Place],
    cases: Sequence[Case],
    sizes: Sizes,
    results: Results,
    say: Say,
    keep: Callable[[Results], None],
) -> None:
    steps = [
        (number, case, place)
        for number in range(sizes.rounds)
        for case in cases
        for place in _rotated(places, number)
        if case.applies(place.system)
    ]
    for step, (number, case, place) in enumerate(steps):
        name = place.system.name
        say(f"round {number + 1} of {sizes.rounds}, {case.name}: {name}", step, len(steps))
        try:
            async for measured in case.measure(place, sizes):
                results.samples.append(
                    Sample(
                        case=case.name,
                        variant=measured.variant,
                        system=measured.system,
                        round=number,
                        values=measured.values,
                        latencies=measured.latencies,
                    )
                )
        except (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            results.not_run[f"{name}, {case.name}, round {number + 1}"] = str(error)
        if step + 1 == len(steps) or steps[step + 1][0] != number:
            keep(results)


def _rotated(places: Sequence[Place], number: int) -> list[Place]:
    """Nobody is always first, when the machine is coolest."""
    turn = number * max(1, len(places) // 3) % max(1, len(places))
    return [*places[turn:], *places[:turn]]
