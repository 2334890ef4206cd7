"""Rules for the source of the library: public names, length, docstrings, and where SQL is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import notifyq
from support.database import ROOT

SOURCE = ROOT / "src/notifyq"
MODULES = sorted(SOURCE.rglob("*.py"))

_STATEMENT = re.compile(
    r"\binsert into\b|\bupdate messages\b|\bdelete from\b|\b(?:from|join) messages\.", re.IGNORECASE
)
# The installer's own record of which version it has installed.
_BOOKKEEPING = re.compile(r"(?:insert into|from) notifyq\.schema_version", re.IGNORECASE)

# They check what the functions did, move rows in time, or read tables of other systems: no function
# does that.
_BESIDE = ("chaos/", "importing/", "testing/")


# Of the library, and of the pipelines, which have other drivers.
_HOMES = (
    "database/statements.py",
    "dashboard/statements.py",
    "export/statements.py",
    "probes.py",
    "monitor/statements.py",
    "report/statements.py",
    "spark/statements.py",
)

# The base class of all faults documents these methods.
_OF_FAULTS = {"inject", "strike", "conclude", "lacking", "prepare", "clean_up"}


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_every_public_name_can_be_imported() -> None:
    for public in notifyq.__all__:
        assert getattr(notifyq, public)
    assert list(notifyq.__all__) == sorted(notifyq.__all__)


def test_importing_the_package_imports_no_module_of_it() -> None:
    code = "import notifyq, sys; print([it for it in sys.modules if it.startswith('notifyq.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_is_defined_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/notifyq/__init__.py"
    assert version("notifyq") == notifyq.__version__
    assert f"## {notifyq.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_each_module_is_short() -> None:
    lines = {name(path): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {file: count for file, count in lines.items() if count > 500} == {}


def test_what_is_public_has_a_docstring() -> None:
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path
        bare = {node.name for node in public(tree) if not ast.get_docstring(node)}
        assert not bare - (_OF_FAULTS if name(path).startswith("chaos/faults/") else set()), path


def public(
    node: ast.Module | ast.ClassDef,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Give the public classes, functions and methods of a module or class."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name.startswith("_") or is_overload(child):
                continue
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def is_overload(node: ast.AST) -> bool:
    """Return whether it is only a signature; the function behind it has the docstring."""
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(name, ast.Name) and name.id == "overload" for name in decorators)


def test_statements_are_in_their_modules() -> None:
    found = [
        f"{name(path)}: {line.strip()}"
        for path in MODULES
        if not name(path).endswith(_HOMES) and not name(path).startswith(_BESIDE)
        for line in strings(path)
        if _STATEMENT.search(line)
        and not (name(path).startswith("schema/") and _BOOKKEEPING.search(line))
    ]
    assert not found


def strings(path: Path) -> Iterator[str]:
    """Give the lines of all string literals of a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node not in docstrings:
            assert isinstance(node, ast.Constant)
            yield from str(node.value).splitlines()


def test_every_statement_of_the_library_calls_a_function() -> None:
    """Behaviour lives in the database: Python reads no table of it and writes none."""
    text = (SOURCE / "database/statements.py").read_text(encoding="utf-8")
    called = set(re.findall(r"\b(?:messages|notifyq)\.([a-z_]+)\(", text))
    named = set(re.findall(r"\b(?:messages|notifyq)\.([a-z_]+)\b", text))
    assert named - called == {"message_status", "message_state"}


def test_the_schema_version_is_the_same_everywhere() -> None:
    from notifyq.database import statements as sql

    migrations = sorted((ROOT / "db/migrations").glob("*.sql"))
    schema = (ROOT / "db/init/bootstrap/schema.sql").read_text(encoding="utf-8")
    written = re.search(r"messages\.version\(\).*?select (\d+);", schema, re.DOTALL)
    assert written is not None
    assert int(written[1]) == len(migrations) + 1 == sql.SCHEMA_VERSION
