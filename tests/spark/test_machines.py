"""What executors of another machine are sent, and which addresses are refused there."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import pytest

from notifyq.errors import ConfigurationError
from notifyq.spark import machines
from notifyq.spark import session as sessions
from notifyq.spark.connection import connect

ELSEWHERE = "elsewhere/1/net:[2]"


@pytest.mark.parametrize(
    ("dsn", "named"),
    [
        ("postgresql://u:hidden@127.0.0.1:5432/x", "127.0.0.1"),
        ("postgresql://u:hidden@127.8.0.1/x", "127.8.0.1"),
        ("postgresql://u:hidden@localhost/x", "localhost"),
        ("postgresql://u:hidden@[::1]/x", "::1"),
        ("postgresql:///x?host=/var/run/postgresql", "/var/run/postgresql"),
        ("host=localhost,127.0.0.1 password=hidden dbname=x", "localhost"),
        ("postgresql:///x", "a local socket"),
        ("dbname=x", "a local socket"),
    ],
)
def test_an_address_of_the_drivers_machine_is_refused_on_another(
    monkeypatch: pytest.MonkeyPatch, dsn: str, named: str
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.setenv(machines.DRIVER, ELSEWHERE)
    with pytest.raises(ConfigurationError) as caught:
        connect(dsn)
    assert f"the DSN names {named}, which on" in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"host": "db.example.org"},
        {"host": "localhost,10.0.0.1"},
        {"host": "localhost", "hostaddr": "10.0.0.1"},
        {"service": "queue"},
    ],
)
def test_addresses_that_executors_reach_are_used(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setenv(machines.DRIVER, ELSEWHERE)
    machines.check(given)


def test_on_the_drivers_machine_any_address_is_accepted(
    monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setenv(machines.DRIVER, machines.this_machine())
    connect(database).close()
    monkeypatch.delenv(machines.DRIVER)
    connect(database).close()


def test_the_driver_has_the_address_that_the_master_reaches() -> None:
    assert machines.address_for("spark://127.0.0.1:7077") == "127.0.0.1"
    assert machines.address_for("spark://localhost:7077,other:7077") == "127.0.0.1"
    assert machines.address_for("yarn") is None
    assert machines.address_for("k8s://https://api:6443") is None
    assert machines.address_for("spark://no.such.host.invalid:7077") is None


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "yarn", "k8s://https://api:6443"])
def test_a_remote_master_is_sent_nothing_of_this_machine(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "address_for", {"spark://127.0.0.1:7077": "10.0.0.9"}.get)
    wanted = sessions._wanted(master, is_short=False)
    assert wanted.get("spark.driver.host") == ("10.0.0.9" if master[0] == "s" else None)
    assert not [key for key, value in wanted.items() if "127.0.0.1" in value and "host" in key]
    assert "spark.driver.bindAddress" not in wanted
    assert wanted[f"spark.executorEnv.{machines.DRIVER}"] == machines.this_machine()


def test_executors_of_this_machine_are_kept_on_its_loopback() -> None:
    for master in ("local[2]", "local[2,4]", "local-cluster[2,1,1024]"):
        assert sessions._wanted(master, is_short=False)["spark.driver.host"] == "127.0.0.1"


def test_a_configured_loopback_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "address_for", lambda _: "10.0.0.9")
    for host in ("127.0.0.1", "localhost", "::1"):
        with pytest.raises(ConfigurationError, match=r"remove spark\.driver\.host"):
            sessions._check_address("spark://10.0.0.1:7077", host)
    sessions._check_address("spark://10.0.0.1:7077", "10.0.0.9")
    sessions._check_address("spark://10.0.0.1:7077", None)
    monkeypatch.setattr(machines, "address_for", lambda _: "127.0.0.1")
    sessions._check_address("spark://127.0.0.1:7077", "127.0.0.1")


def test_machines_have_different_identities() -> None:
    assert machines.this_machine().startswith(f"{socket.gethostname()}/")
    assert os.path.isabs(sys.executable)  # noqa: PTH117 - text, as executors get it
