"""On a real server: the checker accepts the schema as it is, and refuses each mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import schedules
from chaos.clients import Stage
from chaos.mutants import MUTANTS, Edit, Mutant
from chaos.schedules import Schedule
from notifyq.chaos.checker import CheckResult
from support.database import Connect, Connection

SEED = 20261121


async def judge(connect: Connect, folder: Path, schedule: Schedule) -> CheckResult:
    stage = Stage(connect, folder, SEED)
    await stage.open()
    await schedule(stage)
    return await stage.result()


@pytest.mark.parametrize("schedule", schedules.SCHEDULES, ids=lambda it: it.__name__)
async def test_the_schema_violates_no_invariant(
    connect: Connect, tmp_path: Path, schedule: Schedule
) -> None:
    result = await judge(connect, tmp_path, schedule)
    assert result.violations == []
    assert result.acknowledged > 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: it.name)
async def test_the_checker_refuses(
    connection: Connection, connect: Connect, tmp_path: Path, mutant: Mutant
) -> None:
    await mutant.apply(connection)
    result = await judge(connect, tmp_path, getattr(schedules, mutant.schedule))
    assert mutant.invariant in {violation.invariant for violation in result.violations}


@pytest.mark.parametrize("old", ["no such piece", "select"], ids=["gone", "ambiguous"])
async def test_a_mutant_that_no_longer_applies_is_an_error(
    connection: Connection, old: str
) -> None:
    mutant = Mutant("stale", "storm", "I1", (Edit("queue/settle.sql", old, ""),))
    with pytest.raises(AssertionError, match="the mutant no longer applies"):
        await mutant.apply(connection)
