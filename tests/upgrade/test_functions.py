"""Functions that a version had and a later one has not: an upgrade leaves none of them behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.database import ROOT

if TYPE_CHECKING:
    from support.database import Connection

RECORDED = sorted(Path(__file__).parent.glob("functions_*.txt"))
"""The functions of a version, as it was released."""
LIST = """
    select p.oid::regprocedure::text from pg_proc as p
    where p.pronamespace = 'messages'::regnamespace
"""


async def functions(connection: Connection) -> set[str]:
    return {row[0] for row in await connection.fetch(LIST)}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_functions_that_are_gone_are_dropped(connection: Connection, path: Path) -> None:
    version = int(path.stem.partition("_")[2])
    gone = set(path.read_text(encoding="ascii").splitlines()) - await functions(connection)
    async with connection.transaction():
        for function in gone:
            await connection.execute(
                f"create function {function} returns void language plpgsql as 'begin end'"
            )
        for migration in sorted((ROOT / "db/migrations").iterdir()):
            if int(migration.name[:4]) > version:
                text = migration.read_text(encoding="utf-8")
                for block in re.findall(r"^do \$\$.*?^\$\$;", text, re.DOTALL | re.MULTILINE):
                    if "drop function" in block:
                        await connection.execute(block)
        assert gone & await functions(connection) == set()
