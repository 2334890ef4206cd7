"""The suite catches broken clients: the one in bash, with other statements than it sends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.client import BrokenRuleError
from conformance.rules import judge
from conformance.test_clients import BASH, psql

__all__ = ["psql"]

# What is broken: the rule, what sed makes of the statements, what the suite reports.
MUTANTS = {
    "claims without a name": (
        "claim",
        "s/, worker => :'worker'//",
        "without the name of a worker",
    ),
    "forgets the result": ("finish", "s/, result => .*)$/)/", "the result is None"),
    "publishes nothing": (
        "publish",
        r"s/messages.publish(p ->> 'queue', p -> 'message')/null/",
        "not the message",
    ),
    "takes a rejection for a failure": ("reject", "s/'rejected', /'failed', /", "not rejected"),
    "swallows failures": (
        "fail",
        "s/messages.retry(:id, :token, details => :'why')/messages.finish(:id, :token)/",
        "archived as success, not failed",
    ),
    "forgets why it failed": (
        "fail",
        "s/messages.retry(:id, :token, details => :'why')/messages.retry(:id, :token)/",
        "kept without its error",
    ),
    "forgets the delay": ("retry", "s/, delay => :'delay'//", "not an hour"),
    "finishes before it handles": (
        "hold",
        r"s/\(from messages.claim(.*)\)\(\|;\)$/\1 as c where messages.finish(c.id, c.lock_token)/",
        "finished while its handler still runs",
    ),
    "never extends": ("extend", "s/messages.extend(:id, :token)/true/", "not extended in time"),
    "finishes under any token": (
        "token",
        r"s/\(messages.finish(:id, \):token/\1(select lock_token from messages.message "
        "where id = :id)/",
        "archived without its lock",
    ),
    "takes its lock back": (
        "token",
        r"s/\(messages.\)finish(:id, :token.*/\1release(:id, "
        "(select lock_token from messages.message where id = :id and lock_token > :token)) "
        "or messages.finish(:id, :token)/",
        "the lock of another worker was taken away|archived without its lock",
    ),
    "records no step": (
        "step",
        "s/messages.step(:id, :token, :'name', :'attempt')/:'attempt'/",
        r"recorded steps are \[\]",
    ),
    "ignores the signal": (
        "signal",
        "s/from messages.await_signal(.*)/from (values ('received', 1)) as s (state, payload)/",
        "not parked",
    ),
    "never listens": ("notify", "s/^listen new_message;//", "is not archived"),
    "releases nothing": ("release", "s/messages.release(:id, :token)/true/", "is locked"),
}


@pytest.fixture
def mutate(psql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client find the psql that changes statements."""
    monkeypatch.setenv("PATH", f"{Path(__file__).parent}/mutant:{os.environ['PATH']}")
    monkeypatch.setenv("REAL_PSQL", psql)
    monkeypatch.setenv("MUTANT", "")


@pytest.mark.usefixtures("mutate")
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_client_that(mutant: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, script, complaint = MUTANTS[mutant]
    monkeypatch.setenv("MUTANT", script)
    with pytest.raises(BrokenRuleError, match=complaint):
        await judge(rule, database, [BASH], patience=15)


@pytest.mark.usefixtures("mutate")
async def test_a_client_that_never_polls(database: str) -> None:
    command = ["bash", "-c", 'exec "$0" "$@" --poll 3600', BASH]
    with pytest.raises(BrokenRuleError, match="is not archived"):
        await judge("poll", database, command, patience=15)


@pytest.mark.usefixtures("mutate")
async def test_a_client_that_never_connects_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS", "1")
    with pytest.raises(BrokenRuleError, match="is not archived"):
        await judge("reconnect", database, [BASH], patience=15)


async def test_a_client_that_ends(database: str) -> None:
    with pytest.raises(BrokenRuleError, match="the client ended with code 3: its last line: no"):
        await judge("claim", database, ["bash", "-c", "echo no; exit 3"], patience=15)
