"""Which server the tests run on, and what it offers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from notifyq.server import debian_binaries, wheel_binaries
from support.database import session

_DEBIAN = Path("/usr/share/postgresql")


@dataclass(frozen=True)
class Engine:
    """How the tests get their server, and which extensions it offers beside PostgreSQL's own."""

    kind: str
    extensions: frozenset[str]

    @property
    def lacks(self) -> dict[str, str]:
        """The marks of tests that cannot run here, each with the reason."""
        found = {
            mark: f"this server has no {extension}"
            for mark, extension in (("cron", "pg_cron"), ("plpgsql_check", "plpgsql_check"))
            if extension not in self.extensions
        }
        if self.kind != "docker":
            found["docker"] = "the engine is not docker"
        return found


def _succeeds(*command: str, timeout: float = 20) -> bool:
    try:
        return not subprocess.run(
            command, capture_output=True, timeout=timeout, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


def compose_command() -> str | None:
    if _succeeds("docker", "compose", "version"):
        return "docker compose"
    return shutil.which("docker-compose") and "docker-compose"


def _has_image() -> bool:
    base = os.environ.get("NOTIFYQ_BASE_IMAGE", "debian:trixie-slim")
    return (
        _succeeds("docker", "image", "inspect", "notifyq/db:dev")
        or _succeeds("docker", "image", "inspect", base)
        or _succeeds("docker", "pull", "-q", base, timeout=300)
    )


def _offered(dsn: str) -> frozenset[str]:
    async def fetch() -> frozenset[str]:
        async with session(dsn) as connection:
            found = await connection.fetch(
                "select name from pg_available_extensions where name <> 'pg_cron' "
                "or current_setting('cron.database_name', true) = current_database()"
            )
            return frozenset(row["name"] for row in found)

    return asyncio.run(fetch())


def _installed(binaries: Path) -> frozenset[str]:
    folders = (binaries.parent / "share/extension", _DEBIAN / binaries.parent.name / "extension")
    return frozenset(file.stem for folder in folders for file in folder.glob("*.control"))


def choose_engine() -> Engine:
    dsn = os.environ.get("NOTIFYQ_TEST_DSN")
    kind = os.environ.get("NOTIFYQ_TEST_ENGINE") or ("url" if dsn else "")
    if kind == "url":
        if not dsn:
            pytest.exit("NOTIFYQ_TEST_ENGINE=url needs NOTIFYQ_TEST_DSN", 3)
        return Engine(kind, _offered(dsn))
    can_run = not kind and _succeeds("docker", "info") and compose_command() and _has_image()
    if kind == "docker" or can_run:
        return Engine("docker", frozenset({"pg_cron"}))
    for name, binaries in (("debian", debian_binaries()), ("embedded", wheel_binaries())):
        if kind in {"", name} and binaries:
            return Engine(name, _installed(binaries))
    pytest.exit(
        f"no PostgreSQL ({kind or 'any'}): start docker, install the packages postgresql and "
        "postgresql-cron, or run `pip install -e '.[dev]'`",
        3,
    )
