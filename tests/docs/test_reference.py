"""The reference has everything that exists: functions, commands, options, events, errors."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer

import notifyq
from docs.pages import DOCS, maker
from notifyq import errors, telemetry
from notifyq.cli.main import app as command_line
from notifyq.config import DatabaseSettings, RelaySettings, Settings, WorkerSettings
from notifyq.handlers.build import HandlerOptions, SubscriberOptions
from support.database import ROOT, Connection


def page(name: str) -> str:
    return (DOCS / "reference" / name).read_text(encoding="utf-8")


def table(text: str, first: str) -> dict[str, list[str]]:
    """Return the rows of all tables whose first column has this name, by their first cell."""
    found: dict[str, list[str]] = {}
    for head in re.finditer(rf"^\| {first} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        for line in head[1].splitlines():
            name, *rest = [cell.strip() for cell in line.strip("|").split(" | ")]
            found[name.strip("`")] = rest
    return found


async def test_the_site_has_every_function_and_every_public_name(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("griffe", reason="pip install 'notifyq[docs]'")
    monkeypatch.syspath_prepend(ROOT / "tools/docs")
    sql = await maker("make_sql").render(connection)
    functions = await connection.fetchval(
        "select array_agg(distinct p.proname::text) from pg_proc as p "
        "where p.pronamespace = 'messages'::regnamespace and p.proname !~ '^_'"
    )
    assert set(functions) <= set(re.findall(r"^### (\w+)$", sql, re.MULTILINE))
    classes = {error.sqlstate: error.__name__ for error in errors.DatabaseError.__subclasses__()}
    documented = table(sql, "SQLSTATE")
    assert {code: row[0].strip("`") for code, row in documented.items()} == classes
    # It refuses a public name without a section, and a thing without a docstring.
    python = maker("make_api").render(sql)
    assert "#### App.publish_many" in python


def test_the_site_has_every_command() -> None:
    made = maker("make_commands").render()
    for name, command in COMMANDS.items():
        assert command.hidden or not name or f"# {name}\n" in made


def test_the_diagrams_are_those_that_are_drawn() -> None:
    for name, draw in maker("make_diagrams").DIAGRAMS.items():
        drawn = (DOCS / f"assets/{name}.svg").read_text(encoding="utf-8")
        assert drawn == draw(), "run `python tools/docs/make_diagrams.py`"


def test_the_settings_are_those_of_the_source() -> None:
    pytest.importorskip("griffe", reason="pip install 'notifyq[docs]'")
    made = maker("make_reference").settings()
    assert page("settings.md") == made, "run `python tools/docs/make_reference.py`"


def test_every_public_name_has_a_docstring() -> None:
    for name in set(notifyq.__all__) - {"__version__"}:
        assert getattr(notifyq, name).__doc__, name


def every_command(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(names), command
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*names, name))


COMMANDS = dict(every_command(typer.main.get_command(command_line)))


EXAMPLES = page("commands.md")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name and " " not in name])
def test_every_command_has_an_example(name: str) -> None:
    assert re.search(rf"\bnotifyq {name}\b", EXAMPLES)


def test_the_examples_have_no_option_that_is_gone() -> None:
    known = {
        option
        for command in COMMANDS.values()
        for param in command.params
        for option in (*param.opts, *param.secondary_opts)
    }
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", EXAMPLES))
    assert used <= known | {"--help"}


@pytest.mark.parametrize("settings", [DatabaseSettings, WorkerSettings, RelaySettings])
def test_every_setting_is_in_a_table(settings: type[Settings]) -> None:
    first = "relay setting" if settings is RelaySettings else "setting"
    documented = table(page("settings.md"), first)
    for name in settings.model_fields:
        environment, default, meaning = documented[name]
        assert environment == f"`{settings.env_prefix}{name.upper()}`"
        assert default
        assert meaning


def test_every_option_of_a_handler_is_in_the_table() -> None:
    documented = ", ".join(table(page("options.md"), "option of `handler`"))
    options = {"queue", "batch", "linger", *HandlerOptions.__annotations__}
    assert set(re.findall(r"\w+", documented)) == options


def test_every_option_of_a_subscriber_is_in_the_table() -> None:
    documented = ", ".join(table(page("options.md"), "option of `subscriber`"))
    options = {"batch", *SubscriberOptions.__annotations__}
    assert set(re.findall(r"\w+", documented)) == options


def test_every_telemetry_event_is_in_the_table() -> None:
    pytest.importorskip("griffe", reason="pip install 'notifyq[docs]'")
    documented = table(maker("make_reference").telemetry_events(), "event")
    kinds = {kind.__name__: kind for kind in telemetry.TelemetryEvent.__subclasses__()}
    assert documented.keys() == kinds.keys()
    for name, kind in kinds.items():
        level, names, meaning = documented[name]
        assert level == logging.getLevelName(kind.level)
        assert re.findall(r"\w+", names) == [field.name for field in fields(kind)], name
        assert meaning


def test_every_error_has_a_cause_and_a_cure() -> None:
    text = page("errors.md")
    documented = table(text, "error")
    of_database = {row[0].strip("`"): row[1:] for row in table(text, "SQLSTATE").values()}
    for name in notifyq.__all__:
        if name.endswith("Error") and name != "NotifyqError":
            if getattr(notifyq, name).__subclasses__():
                assert f"`{name}`" in text, name
            else:
                cause, cure = (documented | of_database)[name]
                assert cause, name
                assert cure, name


def test_every_sqlstate_has_a_class_and_is_in_the_reference() -> None:
    raised = {
        code
        for path in (ROOT / "db").rglob("*.sql")
        for code in re.findall(r"errcode = '(NQ\d{3})'", path.read_text(encoding="utf-8"))
    }
    classes = {error.sqlstate: error.__name__ for error in errors.DatabaseError.__subclasses__()}
    assert raised == classes.keys()
    documented = table(page("errors.md"), "SQLSTATE")
    assert {code: row[0].strip("`") for code, row in documented.items()} == classes


def test_every_role_is_in_the_reference() -> None:
    roles = set(re.findall(r"'(notifyq_\w+)'", (ROOT / "db/init/bootstrap/roles.sql").read_text()))
    access = (DOCS / "operations/access.md").read_text(encoding="utf-8")
    assert table(access, "role").keys() == roles


def test_the_glossary_is_in_order_and_links_to_pages_that_use_the_word() -> None:
    rows = {word.strip("*"): row for word, row in table(page("glossary.md"), "word").items()}
    assert list(rows) == sorted(rows)
    for word, (_, more) in rows.items():
        linked = re.fullmatch(r"\[[^]]+\]\(([\w/.-]+\.md)(#[\w-]+)?\)", more)
        assert linked, word
        # "to retry" is there as retries, "a batch of events" as batches.
        stem = word.split()[-1].removesuffix("e").removesuffix("y")
        assert stem in page(linked[1]).lower(), f"{linked[1]} does not have {word}"


def test_every_alert_has_a_runbook() -> None:
    rules = (ROOT / "monitoring/rules.yml").read_text(encoding="utf-8")
    runbooks = (DOCS / "operations/runbooks.md").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert re.findall(r"^### (\w+)$", runbooks, re.MULTILINE) == alerts
