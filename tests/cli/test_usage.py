"""What is wrong on the command line itself: exit code 2, one line, and the way to help."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cli.programs import Notifyq
from notifyq import __version__
from notifyq.cli.main import COMMANDS, tree
from notifyq.config import BrokerSettings, CommandSettings, RelaySettings, WorkerSettings
from notifyq.operations.texts import span

WRONG: list[tuple[tuple[str | bytes, ...], str]] = [
    (("nosuch",), "No such command 'nosuch'"),
    (("ping", "more"), "extra argument"),
    (("ping", "--dsn"), "requires an argument"),
    (("ping", "--dsn", ""), "--dsn is empty"),
    (("show", "x"), "'ID'"),
    (("show", "0"), "greater than or equal to 1"),
    (("show", "9223372036854775808"), "less than or equal to 9223372036854775807"),
    (("cancel",), "give ids, or a filter, or --all"),
    (("cancel", "--queue", "q"), "give --yes"),
    (("cancel", "9223372036854775808"), "'ID...'"),
    (("dead", "delete"), "give ids, or --fingerprint"),
    (("dead", "delete", "1", "0"), "'ID...'"),
    (("dead", "retry"), "give ids, or a filter, or --all"),
    (("dead", "retry", "1", "--all"), "give ids, or a filter, or --all"),
    (("dead", "retry", "9223372036854775808"), "'ID...'"),
    (("dead", "retry", "--all", "-n", "100001"), "'--limit'"),
    (("dead", "retry", "--since", "yesterday"), "'yesterday' is not an instant"),
    (("dead", "retry", "--status", "lost"), "is not one of"),
    (("ls", "--state", "gone"), "'gone' is not one of 'waiting', 'scheduled', 'locked'"),
    (("ls", "--state", "waiting", "--finished"), "--state is for live messages"),
    (("ls", "-n", "0"), "'--limit'"),
    (("ls", "-n", "10001"), "'--limit'"),
    (("ls", "-q", b"caf\xe9"), "is not text in UTF-8"),
    (("queues", "create"), "Missing argument"),
    (("queues", "create", "q", "--max-attempts", "0"), "'--max-attempts'"),
    (("queues", "create", "q", "--max-attempts", "1001"), "'--max-attempts'"),
    (("queues", "create", "q", "--notify", "loud"), "'loud' is not one of 'auto', 'always', 'off'"),
    (("queues", "create", "q", "--retention", "1x"), "'1x' is not a duration"),
    (("queues", "create", "q", "--backoff", "-5s"), "'-5s' is not a duration"),
    (("queues", "alter", "q", "--lock-duration", "9" * 20 + "d"), "is too long for a duration"),
    (("publish", "q", "1", "--priority", "2147483648"), "'--priority'"),
    (("publish", "q", "1", "--delay", "soon"), "'soon' is not a duration"),
    (("publish", "q", "1", "--delay", "365001d"), "is longer than 365000d"),
    (("publish", "q", "1", "--delay", ""), "--delay is empty"),
    (("publish", "q", "1", "--at", "9999-12-31"), "is after the year 9998"),
    (("publish", "q", "1", "--at", "0001-01-01"), "is not an instant"),
    (("publish", "q", "1", "--at", "2030-01-01", "--delay", "1s"), "exclude each other"),
    (("publish", "q", "-", "--at", "2030-01-01", "--delay", "1s"), "exclude each other"),
    (("publish", "q", "-", "--dedup-key", "k"), "--dedup-key is for a single message"),
    (("publish", "q", "1", "--header", "name"), "'name' is not NAME=VALUE"),
    (("publish", "q", "1", "--header", "=1"), "is not NAME=VALUE"),
    (("publish", "q", "1", "--header", "a=NaN"), "--header a: NaN is not JSON"),
    (("publish", "q", "1", "--header", r'a="\u0000"'), r"\u0000"),
    (("publish", "q", b'"\xff"'), "is not text in UTF-8"),
    (("worker",), "give MODULE:APP, or --http QUEUE=URL"),
    (("worker", "app"), "'app' is not MODULE:APP"),
    (("worker", "billing:"), "is not MODULE:APP"),
    (("worker", ":app"), "is not MODULE:APP"),
    (("worker", ".billing:app"), "is not MODULE:APP"),
    (("worker", "../billing:app"), "is not MODULE:APP"),
    (("worker", "billing.py:app"), "is not MODULE:APP"),
    (("worker", "m:a", "-c", "0"), "'--concurrency'"),
    (("worker", "m:a", "-c", "10001"), "'--concurrency'"),
    (("worker", "m:a", "--grace", "long"), "'long' is not a duration"),
    (("worker", "m:a", "--log-level", "loud"), "is not one of 'debug', 'info'"),
    (("worker", "m:a", "--log-format", "xml"), "'xml' is not one of 'text', 'logfmt', 'json'"),
    (("worker", "m:a", "--strict"), "--strict needs --queues"),
    (("worker", "m:a", "-q", "a", "--queues", "b"), "--queue and --queues exclude each other"),
    (("worker", "m:a", "--queues", "a:0"), "the weight '0' is not a whole number from 1 to 1000"),
    (("worker", "m:a", "--queues", "a:-1"), "the weight '-1' is not a whole number"),
    (("worker", "m:a", "--queues", "a:1.5"), "the weight '1.5' is not a whole number"),
    (("worker", "m:a", "--queues", "a:"), "the weight '' is not a whole number"),
    (("worker", "m:a", "--queues", "a:1001"), "the weight '1001' is not a whole number"),
    (("worker", "m:a", "--queues", "a:3,a:1"), "'a' is given twice"),
    (("worker", "m:a", "--queues", "a:3,"), "a name is missing"),
    (("worker", "m:a", "--queues", "a:3,b"), "a weight is missing"),
    (("worker", "m:a", "--queues", "a:3,b:1", "--strict"), "leave out the weights of --queues"),
    (
        ("queues", "pause", "q", "--until", "2999-01-31", "--for", "1h"),
        "--until and --for exclude each other",
    ),
    (("publish", "q", "1", "--on-failure", "run"), "--on-failure is for what is published"),
    (("demo", "--workers", "0"), "'--workers'"),
    (("demo", "--dsn", ""), "--dsn is empty"),
]


@pytest.mark.parametrize(
    ("args", "why"),
    WRONG,
    ids=[
        str(b" ".join(arg if isinstance(arg, bytes) else arg.encode() for arg in args))[2:-1][:50]
        for args, _ in WRONG
    ],
)
def test_wrong_usage_is_refused_before_any_connection(
    anywhere: Notifyq, args: tuple[str | bytes, ...], why: str
) -> None:
    line = anywhere.refused(*args, code=2, env={"NOTIFYQ_DSN": "postgresql://127.0.0.1:1/x"})
    assert why in line
    assert "(see `notifyq" in line


@pytest.mark.parametrize("args", [(), ("archive",), ("server",)])
def test_command_without_its_command_prints_help(anywhere: Notifyq, args: tuple[str, ...]) -> None:
    result = anywhere(*args)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("Usage: notifyq")
    assert ("Commands:" if args else "Run:") in result.err


def test_a_group_lists_without_a_command(notifyq: Notifyq) -> None:
    listing = [
        name for name, group in tree().commands.items() if "ls" in getattr(group, "commands", ())
    ]
    assert listing == ["dead", "roles", "queues", "stream", "schedules", "retention"]
    for group in listing:
        assert notifyq.good(group).out == notifyq.good(group, "ls").out
        # An option is that of the list, too.
        assert notifyq.good(group, "--json").out == notifyq.good(group, "ls", "--json").out
        assert f"Usage: notifyq {group} [OPTIONS] COMMAND" in notifyq.good(group, "--help").out
        assert "No such option: --jsn" in notifyq.refused(group, "--jsn", code=2)


@pytest.mark.parametrize("option", ["--dsn", "--json"])
def test_an_option_before_the_command_is_explained(anywhere: Notifyq, option: str) -> None:
    line = anywhere.refused(option, "x", "ls", code=2)
    assert f"{option} stands behind the command, as in `notifyq ls {option}`" in line


@pytest.mark.parametrize("command", ["ls", "dead ls"])
def test_a_queue_that_stands_as_an_argument_is_explained(anywhere: Notifyq, command: str) -> None:
    line = anywhere.refused(*command.split(), "orders", code=2)
    assert "argument (orders): a queue is named by --queue (see" in line.replace("(s)", "")
    assert "--queue" not in anywhere.refused("ping", "orders", code=2)


def test_version_is_printed(anywhere: Notifyq) -> None:
    assert anywhere.good("--version").out == f"notifyq {__version__}\n"


def every_help(command: Any, parent: Any, name: str) -> Iterator[tuple[str, str]]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    context.terminal_width = 80
    yield context.command_path, context.get_help()
    for called, child in getattr(command, "commands", {}).items():
        yield from every_help(child, context, called)


def test_every_command_has_help_of_80_columns(anywhere: Notifyq) -> None:
    seen = dict(every_help(tree(), None, "notifyq"))
    assert len(seen) > 50
    for path, text in seen.items():
        assert text.startswith(f"Usage: {path}")
        assert max(map(len, text.splitlines())) <= 80
    # And one of them as a terminal has it.
    printed = anywhere.good("queues", "create", "--help", env={"COLUMNS": "80"}).out
    assert printed.split() == seen["notifyq queues create"].split()


def test_the_list_of_commands_has_the_first_sentence_of_each_in_full(anywhere: Notifyq) -> None:
    listed = anywhere.good("--help", env={"COLUMNS": "80"}).out
    for name, (_, line) in chain.from_iterable(group.items() for group in COMMANDS.values()):
        assert len(line) <= 60
        assert " ".join(tree().commands[name].help.split()).startswith(line)
        assert re.search(rf"^  {name} +{re.escape(line)}$", listed, re.MULTILINE)
    assert all(f"\n{purpose}:\n" in listed for purpose in COMMANDS)


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("ping", "--help")])
def test_a_command_imports_no_other_one(args: tuple[str, ...]) -> None:
    code = (
        "import sys; from notifyq.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    commands = {f"notifyq.cli.{module}" for g in COMMANDS.values() for module, _ in g.values()}
    used = {"notifyq.cli.ping"} if "ping" in args else set()
    assert commands & loaded == used
    assert not loaded & {"notifyq.app", "notifyq.worker.worker", "notifyq.operations.top.snapshot"}
    if not used:
        # They make half of the time of a short command.
        assert not loaded & {"asyncio", "asyncpg", "logging", "pydantic", "pydantic_core", "rich"}


def test_the_help_of_a_worker_has_the_defaults_of_its_settings() -> None:
    helps = {it.name: it.help for it in tree().commands["worker"].params}
    for settings in (WorkerSettings, BrokerSettings, RelaySettings, CommandSettings):
        for name in ("concurrency", "processes", "grace", "poll"):
            if (field := settings.model_fields.get(name)) is not None:
                default = field.default
                shown = span(default) if isinstance(default, timedelta) else str(default)
                assert helps[name].endswith(f"; by default {shown.replace(' ', '')}."), name


def test_setting_that_is_wrong_is_named(anywhere: Notifyq, tmp_path: Path) -> None:
    for name, value in (
        ("POOL_SIZE", "many"),
        ("POOL_SIZE", "0"),
        ("CONNECT_TIMEOUT", "soon"),
        ("COMMAND_TIMEOUT", "0"),
    ):
        env = {"NOTIFYQ_DSN": "postgresql://127.0.0.1:1/x", f"NOTIFYQ_{name}": value}
        for args in (("ping",), ("ls",), ("demo",)):
            assert f"setting {name.lower()}: " in anywhere.refused(*args, env=env)


def test_without_a_database_the_error_names_three_ways_to_get_one(anywhere: Notifyq) -> None:
    line = anywhere.refused("queues", env={})
    assert all(way in line for way in ("--dsn", "NOTIFYQ_DSN", "`notifyq server start`"))


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (("ls", "-q", ""), "-q"),
        (("ls", "--queue", " "), "--queue"),
        (("dead", "retry", "--queue="), "--queue"),
        (("audit", "--mask", ""), "--mask"),
        (("worker", "mail:app", "--stream", ""), "--stream"),
        (("relay", "a", "b", "--source-file", ""), "--source-file"),
        (("demo", "--package", ""), "--package"),
        (("report", "-o", ""), "-o"),
    ],
)
def test_an_option_with_an_empty_value_is_refused(
    anywhere: Notifyq, args: tuple[str, ...], option: str
) -> None:
    assert anywhere.refused(*args, code=2).startswith(
        f"notifyq: Invalid value: {option} is empty ("
    )


@pytest.mark.parametrize("command", ["queues", "demo", "ping", "worker"])
@pytest.mark.parametrize("variable", ["NOTIFYQ_DSN", "NOTIFYQ_DSN_FILE", "NOTIFYQ_POOL_SIZE"])
def test_a_blank_variable_is_refused(anywhere: Notifyq, command: str, variable: str) -> None:
    args = (command, "notifyq.demo.index:app") if command == "worker" else (command,)
    dsn = {"NOTIFYQ_DSN": "postgresql://127.0.0.1:1/x"} if variable.endswith("SIZE") else {}
    line = anywhere.refused(*args, env={**dsn, variable: ""})
    if command == "worker" and variable == "NOTIFYQ_POOL_SIZE":
        assert "cannot be imported" in line  # the app reads it
    assert f"{variable} is set, but empty: give it a value, or unset it" in line
