"""The built package works in an environment without the repository."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import notifyq
from support.database import ROOT, session

EPOCH = "1700000000"
SQL_FILES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("init", "migrations")
    for path in (ROOT / "db" / folder).rglob("*.sql")
}


def run(*command: str | Path, cwd: Path, code: int = 0, **variables: str) -> str:
    """Run it; return what it printed, or the error that goes with the code."""
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a Python that has the build back end: this one, or one made for it."""
    if all(map(importlib.util.find_spec, ("hatchling", "hatch_fancy_pypi_readme"))):
        return Path(sys.executable)
    folder = tmp_path_factory.mktemp("builder")
    venv.create(folder, with_pip=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "-q", *project["build-system"]["requires"], cwd=folder)
    return python


@pytest.fixture(scope="module")
def built(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(builder, "-m", "hatchling", "build", "-d", folder, cwd=ROOT, SOURCE_DATE_EPOCH=EPOCH)
    return folder


def only(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.timeout(120)
def test_the_wheel_has_the_sql_files_and_only_the_package(built: Path) -> None:
    wheel = names(only(built, "*.whl"))
    assert {f"notifyq/{name}" for name in SQL_FILES} <= wheel
    assert {"notifyq/py.typed", "notifyq/db/migrations/README.md"} <= wheel
    info = f"notifyq-{notifyq.__version__}.dist-info/"
    assert all(name.startswith(("notifyq/", "pyspark_notifyq.py", info)) for name in wheel)
    assert f"{info}licenses/LICENSE" in wheel
    assert not [name for name in wheel if "__pycache__" in name or "bench/" in name]


@pytest.mark.timeout(120)
def test_an_index_shows_no_link_into_the_repository(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as archive:
        [name] = (name for name in archive.namelist() if name.endswith("/METADATA"))
        shown = archive.read(name).decode()
    assert "\nDescription-Content-Type: text/markdown\n" in shown
    assert "\nnotifyq worker billing:app " in shown
    assert "The tutorial builds an application" in shown
    assert re.findall(r"\]\((?!https?:)[^)]*\)", shown) == []


@pytest.mark.timeout(120)
def test_builds_of_the_same_source_are_equal_byte_for_byte(
    built: Path, builder: Path, tmp_path: Path
) -> None:
    """Also those from the source distribution, in another folder and with files of another age."""
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        members = [name.partition("/")[2] for name in archive.getnames()]
        archive.extractall(tmp_path, filter="data")
    source = only(tmp_path, "notifyq-*")
    assert {"README.md", "CHANGELOG.md", "LICENSE", "db", "docs", "tests", "workers"} <= {
        path.name for path in source.iterdir()
    }
    left = re.compile(r"(^|/)(__pycache__|\.venv|\.env|\.git|[^/]*_cache|bench-results)(/|$)")
    assert [name for name in members if left.search(name)] == []
    again = tmp_path / "again"
    run(builder, "-m", "hatchling", "build", "-d", again, cwd=source, SOURCE_DATE_EPOCH=EPOCH)
    for pattern in ("*.whl", "*.tar.gz"):
        assert only(again, pattern).read_bytes() == only(built, pattern).read_bytes()


@pytest.mark.timeout(120)
async def test_the_wheel_works_away_from_the_repository(
    built: Path, tmp_path: Path, empty_database: str
) -> None:
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    # Dependencies are those of the tests. A path file found through a path file is not read, so
    # the repository, which is installed here as one, stays out of sight.
    packages = only(folder, "lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "-q")
    run(*pip, "--no-deps", "--no-index", only(built, "*.whl"), cwd=tmp_path)
    command = folder / "bin/notifyq"

    where = run(
        folder / "bin/python", "-c", "import notifyq; print(notifyq.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(folder)
    assert run(command, "--version", cwd=tmp_path) == f"notifyq {notifyq.__version__}\n"
    [refusal] = run(command, "bench", cwd=tmp_path, code=1).splitlines()
    assert "run it in a checkout of the repository" in refusal
    output = run(command, "init", cwd=tmp_path, NOTIFYQ_DSN=empty_database)
    assert output.startswith("schema messages version")
    planned = run(command, "migrate", "--dry-run", cwd=tmp_path, NOTIFYQ_DSN=empty_database)
    assert all(Path(line).is_relative_to(packages) for line in planned.splitlines())
    async with session(empty_database) as connection:
        assert await connection.fetchval("select messages.version()")
