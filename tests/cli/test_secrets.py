"""No command prints a password, whatever is wrong with its DSN and wherever that stands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cli.programs import Notifyq, Result
from notifyq.cli import main
from notifyq.cli.logs import LogFormat, formatter
from notifyq.dsn import masked_in

SECRET = "s3cr3t"
WRONG = {
    "nobody answers": f"postgresql://me:{SECRET}@127.0.0.1:1/x",
    "no number as port": f"postgresql://me:{SECRET}@127.0.0.1:port/x",
    "port out of range": f"postgresql://me:{SECRET}@127.0.0.1:99999/x",
    "no such option": f"postgresql://127.0.0.1:1/x?user=me&password={SECRET}&sslmode=maybe",
    "no such service": f"postgresql://me:{SECRET}@127.0.0.1:1/x?service=none",
    "not encoded": f"postgresql://me:{SECRET}/ {SECRET}@127.0.0.1:1/x",
    "in part a port": f"postgresql://me:1/{SECRET}@127.0.0.1/x",
    "no such scheme": f"postgre://me:{SECRET}@127.0.0.1/x",
    "encoded": f"postgresql://me:%73%33%63%72%33%74{SECRET}@127.0.0.1:1/x",
    "of libpq": f"host=127.0.0.1 port=1 user=me password={SECRET}",
    "of libpq, in quotes": f"host=127.0.0.1 port=1 password = '{SECRET} {SECRET}'",
    "not one": f"me:{SECRET}@127.0.0.1/x",
}
ARGUMENTS = {"target": "handlers:app", "message_id": "1", "ids": "1", "weight": "1"}
PROGRAM = """
import notifyq
app = notifyq.App()

@app.handler("default")
async def handle(_): ...
"""


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, each with arguments that it takes."""
    command = command or main.tree()
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from commands(each, (*path, name))
        return
    found = [*path]
    for each in command.params:
        if each.required or (*path, each.name) == ("worker", "target"):
            value = ARGUMENTS.get(each.name, "default")
            value = {"system": "pgmq", "path": "out.json", "lake": "lake"}.get(each.name, value)
            found += [each.opts[0], value] if each.param_type_name == "option" else [value]
    yield tuple(found)


COMMANDS = list(commands())
NO_WAIT = {"NOTIFYQ_RETRY_FOR": "0", "NOTIFYQ_CONNECT_TIMEOUT": "2s"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(PROGRAM)
    return tmp_path


def one(number: int) -> tuple[str, int]:
    """A wrong one, and which of three ways to give it: one function reads all, each has a turn."""
    return [*WRONG.values()][number % len(WRONG)], number // len(WRONG) % 3


def check(result: Result, args: tuple[str, ...], code: frozenset[int] = frozenset({1, 2})) -> None:
    assert result.code in code, (args, result)
    assert SECRET not in result.out + result.err, (args, result)


def test_all_commands_are_covered() -> None:
    assert len(COMMANDS) > 60
    assert ("spark", "export", "--lake", "lake") in COMMANDS
    assert ("queues", "share", "default", "default", "1") in COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_the_password_of_a_wrong_dsn(
    anywhere: Notifyq, folder: Path, command: tuple[str, ...]
) -> None:
    if command[:2] in {("server", "start"), ("server", "stop"), ("server", "status")}:
        args = (*command, "--dsn", WRONG["nobody answers"])
        check(anywhere(*args, folder=folder), args)
        return
    number = COMMANDS.index(command)
    dsn, way = one(number)
    debug = ["--debug"] if number % 2 else []
    if command[0] in {"chaos", "relay"} or command[:2] in {("server", "url"), ("bench", "report")}:
        args = (*command, *debug, "--dsn", dsn)
    else:
        args = (*command, *debug, *[["--dsn", dsn], [f"--dsn={dsn}"], []][way])
    env = NO_WAIT if "--dsn" in " ".join(args) else {**NO_WAIT, "NOTIFYQ_DSN": dsn}
    check(anywhere(*args, env=env, folder=folder), args)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_a_misplaced_dsn(
    anywhere: Notifyq, folder: Path, command: tuple[str, ...]
) -> None:
    dsn, way = one(COMMANDS.index(command))
    args = [
        (*command, dsn, dsn, dsn, dsn),
        (*command, "--port", dsn, "--quantity", dsn),
        (*command, f"--dns={dsn}"),
    ][way]
    if args[0] == "import":  # takes a source
        args = (args[0], dsn, *args[2:])
    env = {**NO_WAIT, "NOTIFYQ_DSN": WRONG["nobody answers"]}
    check(anywhere(*args, env=env, folder=folder), args)


@pytest.mark.parametrize(
    "args",
    [
        ("relay", "{}"),
        ("relay", "{}", "{}"),
        ("relay", "{}", "{}", "{}"),
        ("relay", "{}", "{}", "--queue", "default"),
        ("relay", "{}", "{}", "--debug", "--queue", "default"),
        ("relay", "--queue", "{}", "--queue", "{}"),
        ("relay", "--stream", "{}"),
        ("relay", "{}", "--source-file", "{}", "--queue", "x"),
        ("relay", "--target-file", "{}", "{}", "--queue", "x"),
        ("relay", "--filter", "{}", "--queue", "x", "{}", "{}"),
        ("relay", "--in-flight", "{}"),
        ("relay", "--transform", "{}", "--queue", "x", "{}", "{}"),
        ("relay", "--metrics-host", "{}", "--queue", "x", "{}", "{}"),
        ("import", "pgmq", "{}", "--source-file", "{}"),
        ("import", "pgmq", "{}", "--map", "{}"),
        ("import", "{}"),
        ("publish", "default", "{}", "--header", "{}"),
        ("publish", "{}", "1"),
        ("ping", "--listen-dsn", "{}", "--listen-dsn", "{}"),
        ("ping", "--dsn", "{}", "--dsn", "{}"),
        ("ping", "--dsn-file", "{}"),
        ("worker", "{}"),
        ("schedules", "next", "{}"),
        ("dead", "ls", "--since", "{}"),
        ("{}",),
        ("--{}",),
        ("queues", "{}"),
    ],
)  # fmt: skip
def test_no_mistake_prints_the_password(
    anywhere: Notifyq, folder: Path, args: tuple[str, ...]
) -> None:
    dsn, _ = one(len("".join(args)))
    given = tuple(arg.format(dsn) for arg in args)
    env = {**NO_WAIT, "NOTIFYQ_DSN": WRONG["nobody answers"]}
    check(anywhere(*given, env=env, folder=folder), given)


def test_an_undecodable_argument_shows_no_password(anywhere: Notifyq) -> None:
    result = anywhere("ping", "--dsn", WRONG["nobody answers"].encode() + b"\xff")
    check(result, ("ping",))
    assert "is not text in UTF-8" in result.err


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"to postgresql://me:{SECRET}@h/x: refused", "to postgresql://me:***@h/x: refused"),
        (f"'postgresql://h/x?password={SECRET}',", "'postgresql://h/x?password=***',"),
        (f"(jdbc:postgresql://h:1/x?user=me&password={SECRET})", "(jdbc:postgresql://h:1/x?user=me&password=***)"),
        (f"host=h password={SECRET} user=x", "host=h password=*** user=x"),
        (f"host=h password='{SECRET} \\' {SECRET}' user=x", "host=h password=*** user=x"),
        (f"PGPASSWORD={SECRET} psql", "PGPASSWORD=*** psql"),
        (f"amqp://me:{SECRET}@h:5672/", "amqp://me:***@h:5672/"),
        (f"https://me:{SECRET}@h/x", "https://me:***@h/x"),
        ("404 for https://news.example/@ann/post-1, see the log",) * 2,
        ("https://modules.example/@types/node and HTTP://shop.test:80?to=ann@example.org",) * 2,
        (f"https://shop.test/?to=postgresql://me:{SECRET}@h/x", "https://shop.test/?to=postgresql://me:***@h/x"),
        ("1.https://shop.test/https://news.example/@ann//shop.test/@bob",) * 2,
        ("see https://127.0.0.1/a?b=c, or s3://bucket/x.", "see https://127.0.0.1/a?b=c, or s3://bucket/x."),
        ("no connection to postgresql://me:***@h:5432/x: [Errno 111] is the server running?",) * 2,
        ("mail to ann@example.com: password wrong",) * 2,
    ],
)  # fmt: skip
def test_a_text_that_quotes_a_dsn_is_masked(text: str, left: str) -> None:
    assert masked_in(text) == left


def test_a_dsn_without_a_password_is_shown() -> None:
    for dsn in ("postgresql://me@h.test:1/x?sslmode=disable", "postgresql+asyncpg://me@h.test/x"):
        assert masked_in(f"to {dsn}: refused", [dsn]) == f"to {dsn}: refused"
    for dsn in ("postgresql://me@h@h.test/x", "postgresql://me%3Apw@h.test/x"):
        assert masked_in(f"to {dsn}: refused", [dsn]) == "to (a DSN): refused"


def test_logs_are_masked() -> None:
    record = logging.makeLogRecord(
        {
            "msg": "to %s",
            "args": (WRONG["nobody answers"],),
            "event": {"dsn": WRONG["no such option"]},
        }
    )
    error = ValueError(WRONG["nobody answers"])
    record.exc_info = (type(error), error, None)
    for log_format in (*get_args(LogFormat), None):
        line = formatter(log_format).format(record)
        assert "127.0.0.1" in line
        assert SECRET not in line
