"""The options of policies are those of the functions, the commands and the dashboard."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from notifyq import Policy, StreamPolicy
from notifyq.cli.main import tree
from notifyq.operations.dashboard.policy import FIELDS
from notifyq.queues.policy import PolicyBase, options

if TYPE_CHECKING:
    from support.database import Connection


@pytest.mark.parametrize(
    ("function", "policy", "without"),
    [
        ("create_queue", Policy, set()),
        ("alter_queue", Policy, set()),
        ("create_stream", StreamPolicy, set()),
        ("alter_stream", StreamPolicy, {"durable"}),
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


def test_the_dashboard_has_a_field_for_each_option() -> None:
    assert {it.name for it in FIELDS} == {it.name for it in fields(Policy)}
