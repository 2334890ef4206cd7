"""The references say what is there: functions, commands, options, settings, events, errors."""

from __future__ import annotations

import importlib.util
import logging
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
import typer
from pydantic_core import PydanticUndefined

import notifyq
from docs.pages import anchors
from notifyq import errors, telemetry
from notifyq.cli.main import app as command_line
from notifyq.cli.output import span
from notifyq.config import DatabaseSettings, RelaySettings, Settings, WorkerSettings
from notifyq.handlers.build import HandlerOptions
from notifyq.handlers.subscriber import SubscriberOptions
from support.database import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.database import Connection

DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def table(text: str, first: str) -> dict[str, list[str]]:
    """Return the rows of all tables whose first column has this name, by their first cell."""
    found: dict[str, list[str]] = {}
    for head in re.finditer(rf"^\| {first} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        for line in head[1].splitlines():
            name, *rest = [cell.strip() for cell in line.strip("|").split(" | ")]
            found[name.strip("`")] = rest
    return found


def maker(name: str) -> Any:
    """Load a program of docs/ that makes a page."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_sql_reference_is_that_of_the_database(connection: Connection) -> None:
    made = await maker("make_sql").render(connection)
    assert page("sql.md") == made, "run `python docs/make_sql.py`"


def test_the_python_reference_is_that_of_the_package() -> None:
    pytest.importorskip("griffe", reason="pip install 'notifyq[docs]'")
    assert page("api.md") == maker("make_api").render(), "run `python docs/make_api.py`"


def test_the_list_of_commands_is_that_of_the_command_line() -> None:
    made = maker("make_commands").render()
    assert page("commands.md") == made, "run `python docs/make_commands.py`"


def test_the_diagrams_are_those_that_are_drawn() -> None:
    for name, draw in maker("make_diagrams").DIAGRAMS.items():
        assert page(f"assets/{name}.svg") == draw(), "run `python docs/make_diagrams.py`"


def test_everything_public_says_what_it_is() -> None:
    for name in set(notifyq.__all__) - {"__version__"}:
        assert getattr(notifyq, name).__doc__, name


def every_command(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(names), command
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*names, name))


COMMANDS = dict(every_command(typer.main.get_command(command_line)))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name])
def test_every_command_is_in_the_reference(name: str) -> None:
    text = page("cli.md")
    group, _, action = name.partition(" ")
    assert group in anchors(DOCS / "cli.md")
    section = text.split(f"\n## {group}\n")[1].split("\n## ")[0]
    assert f"notifyq {name}" in section
    assert not action or f"`{action}`" in section
    for option in (name for param in COMMANDS[name].params for name in param.opts):
        if option.startswith("-") and option not in {"--help", "--dsn", "--json"}:
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", section), f"{option} of {name}"


def test_the_options_of_all_commands_are_in_the_reference() -> None:
    introduction = page("cli.md").split("\n## ")[0]
    for option in ("--dsn", "--json", "--help", "--version", "--debug"):
        assert option in introduction


def test_the_reference_has_no_option_that_is_gone() -> None:
    known = {
        option
        for command in COMMANDS.values()
        for param in command.params
        for option in (*param.opts, *param.secondary_opts)
    }
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page("cli.md")))
    assert said <= {*known, "--help"}


@pytest.mark.parametrize("settings", [DatabaseSettings, WorkerSettings, RelaySettings])
def test_every_setting_is_in_the_table(settings: type[Settings]) -> None:
    if settings is RelaySettings:
        documented = table(page("relay.md"), "relay setting")
        assert documented.keys() == RelaySettings.model_fields.keys()
    else:
        documented = table(page("python.md"), "setting")
    for name, field in settings.model_fields.items():
        environment, default, meaning = documented[name]
        assert environment == f"`{settings.env_prefix}{name.upper()}`"
        assert field.default is not PydanticUndefined
        if field.default is None:
            assert default == "see"
            continue
        shown = str(field.default) if isinstance(field.default, int) else span(field.default)
        assert default == shown, name
        assert meaning


def test_the_table_has_no_setting_that_is_gone() -> None:
    known = {*DatabaseSettings.model_fields, *WorkerSettings.model_fields}
    assert set(table(page("python.md"), "setting")) == known


def test_every_option_of_a_handler_is_in_the_table() -> None:
    documented = ", ".join(table(page("python.md"), "option of `handler`"))
    options = {"queue", "batch", "linger", *HandlerOptions.__annotations__}
    assert set(re.findall(r"\w+", documented)) == options


def test_every_option_of_a_subscriber_is_in_the_table() -> None:
    documented = ", ".join(table(page("streams.md"), "option of `subscriber`"))
    options = {"batch", *SubscriberOptions.__annotations__}
    assert set(re.findall(r"\w+", documented)) == options


def test_every_event_is_in_the_table() -> None:
    documented = table(page("events.md"), "event")
    kinds = {kind.__name__: kind for kind in telemetry.Event.__subclasses__()}
    assert documented.keys() == kinds.keys()
    for name, kind in kinds.items():
        level, names, meaning = documented[name]
        assert level == logging.getLevelName(kind.level)
        assert re.findall(r"\w+", names) == [field.name for field in fields(kind)], name
        assert meaning


def test_every_error_is_in_the_reference() -> None:
    text = page("python.md").split("\n## Errors\n")[1]
    for name in notifyq.__all__:
        if name.endswith("Error"):
            assert f"`{name}`" in text or f"notifyq.{name}" in text, name


def test_every_sqlstate_has_a_class_and_is_in_the_reference() -> None:
    raised = {
        code
        for path in (ROOT / "db").rglob("*.sql")
        for code in re.findall(r"errcode = '(NQ\d{3})'", path.read_text(encoding="utf-8"))
    }
    classes = {error.sqlstate: error.__name__ for error in errors.DatabaseError.__subclasses__()}
    documented = table(page("sql.md"), "SQLSTATE")
    assert raised == classes.keys()
    assert {code: row[0].strip("`") for code, row in documented.items()} == classes


def test_every_role_is_in_the_reference() -> None:
    roles = set(re.findall(r"'(notifyq_\w+)'", (ROOT / "db/init/bootstrap/roles.sql").read_text()))
    assert table(page("sql.md"), "role").keys() == roles


def test_the_glossary_is_in_order_and_leads_to_pages_that_use_the_word() -> None:
    rows = {word.strip("*"): row for word, row in table(page("glossary.md"), "word").items()}
    assert list(rows) == sorted(rows)
    for word, (_, more) in rows.items():
        linked = re.fullmatch(r"\[[^]]+\]\(([\w-]+\.md)(#[\w-]+)?\)", more)
        assert linked, word
        # "to retry" is there as retries, "a batch of events" as batches.
        stem = word.replace("_", " ").split()[-1].removesuffix("e").removesuffix("y")
        assert stem in page(linked[1]).lower(), f"{linked[1]} does not say {word}"
