"""The options of policies are those of the functions, the commands and the dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import pytest

from notifyq import App, Policy, StreamPolicy
from notifyq.cli.main import tree
from notifyq.config import parse_duration
from notifyq.operations.dashboard.policy import FIELDS
from notifyq.queues.options import Option, PolicyBase, option, options
from support.database import Connection

NEEDED: dict[str, dict[str, Any]] = {
    "backoff": {"backoff_max": timedelta(days=3)},
    "rate_burst": {"rate": 5},
    "key_rate_burst": {"key_rate": 5},
}
"""What an option needs beside it."""


def another(option: Option) -> Any:
    """A value that is not the default."""
    match option.kind:
        case "duration":
            return timedelta(days=2)
        case "flag":
            return option.name != "durable"
        case "choice":
            return option.choices[-1]
        case "type":
            return "integer"
        case "schema":
            return {"type": "object"}
        case _:
            return min(4097, option.most or 4097)


@pytest.mark.parametrize("given", options(Policy), ids=lambda it: it.name)
async def test_an_option_is_stored_changed_and_removed(app: App, given: Option) -> None:
    needed = NEEDED.get(given.name, {})
    chosen: dict[str, Any] = {given.name: another(given)}

    async def differences(queue: str) -> list[str]:
        [row] = await app.admin.queue_info(queue)
        return Policy(**chosen).differences(dict(row))

    await app.admin.create_queue("created", Policy(**needed, **chosen))
    assert await differences("created") == []
    await app.admin.create_queue("altered", Policy(**needed))
    assert await differences("altered") != []
    await app.admin.alter_queue("altered", Policy(**needed, **chosen))
    assert await differences("altered") == []
    if given.none:
        nothing: dict[str, Any] = {given.name: given.none_value}
        await app.admin.alter_queue("altered", Policy(**nothing))
        [row] = await app.admin.queue_info("altered")
        assert row[given.name] is None


@pytest.mark.parametrize(
    ("function", "policy", "without"),
    [
        ("create_queue", Policy, set()),
        ("alter_queue", Policy, set()),
        ("create_stream", StreamPolicy, set()),
        ("alter_stream", StreamPolicy, {"durable", "encrypted"}),
    ],
)
async def test_a_function_has_each_option_as_a_parameter(
    connection: Connection, function: str, policy: type[PolicyBase], without: set[str]
) -> None:
    parameters = await connection.fetchval(
        "select proargnames from pg_proc where oid = to_regproc($1)", f"messages.{function}"
    )
    described = [it.name for it in options(policy) if it.name not in without]
    assert ["name", *described] == parameters


@pytest.mark.parametrize(("group", "policy"), [("queues", Policy), ("stream", StreamPolicy)])
def test_a_command_has_each_option_with_its_help(group: str, policy: type[PolicyBase]) -> None:
    command = tree().commands[group].commands["create"]
    helps = {it.name: it.help for it in command.params}
    for it in options(policy):
        assert re.fullmatch(r".+\.", it.help), it.name
        if not it.name.endswith("_period"):
            assert helps[it.name].startswith(it.help[:-1])


@pytest.mark.parametrize(
    ("policy", "create", "info"),
    [
        (Policy, "create_queue", "queue_info"),
        (StreamPolicy, "create_stream", "stream_info"),
    ],
)
async def test_the_defaults_in_the_help_are_those_of_the_database(
    connection: Connection, policy: type[PolicyBase], create: str, info: str
) -> None:
    await connection.execute(f"select messages.{create}('new')")
    row = await connection.fetchrow(f"select * from messages.{info}('new')")
    assert row is not None
    read: dict[str, Callable[[str], object]] = {
        "duration": parse_duration, "number": int, "choice": str,
    }  # fmt: skip
    shown = {it.name: read[it.kind](it.default) for it in options(policy) if it.default}
    assert shown == {name: row[name] for name in shown}
    for it in options(policy):
        assert it.default or it.none or it.off or it.name.endswith("_period"), it.name


def test_the_dashboard_has_a_field_for_each_option() -> None:
    assert {it.name for it in FIELDS} == {it.name for it in fields(Policy)}


def test_a_new_kind_of_option_is_reported_before_it_is_sent() -> None:
    @dataclass(frozen=True, slots=True)
    class Contacts(PolicyBase):
        contact: str | None = option("Who is responsible.")

    with pytest.raises(TypeError, match="contact: options have no kind for str"):
        options(Contacts)
