"""The floors of pyproject.toml: imports go down only, and what breaks a floor is noticed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from support.database import ROOT

PROJECT = ROOT / "pyproject.toml"


def lint(config: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [command, "--config", config, "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        cwd=config.parent,
    )


def test_imports_go_down_only() -> None:
    done = lint(PROJECT)
    assert done.returncode == 0, done.stdout


def test_an_import_that_goes_up_is_noticed(tmp_path: Path) -> None:
    text = PROJECT.read_text(encoding="utf-8")
    changed = text.replace('  "__main__",\n  "cli",\n', '  "cli",\n  "__main__",\n')
    assert changed != text
    config = tmp_path / "pyproject.toml"
    config.write_text(changed, encoding="utf-8")
    done = lint(config)
    assert done.returncode == 1
    assert "notifyq.__main__ -> notifyq.cli.main" in done.stdout


def test_every_module_must_have_a_floor() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    layers = [c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    assert layers
    assert all(contract["exhaustive"] for contract in layers)


def test_the_root_has_few_modules() -> None:
    """Only what users import or read first; the rest has a folder."""
    root = ROOT / "src/notifyq"
    modules = [path.stem for path in root.glob("*.py") if not path.stem.startswith("__")]
    folders = [path.parent for path in root.glob("*/__init__.py")]
    assert len(modules) <= 10, modules
    assert len(folders) <= 22, folders
