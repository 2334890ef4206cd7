"""DSNs as other programs write them: what each option means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from notifyq.database.connect import targets
from notifyq.dsn import hosts_of, masked, options_of, url_of, with_database, with_user
from notifyq.errors import ConfigurationError

OPTIONS = {"host": "h", "user": "me", "dbname": "x"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSERVICE", "PGSERVICEFILE", "PGPORT", "PGSSLROOTCERT", "PGTARGETSESSIONATTRS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("dsn", "options"),
    [
        ("postgresql://me@h/x", OPTIONS),
        ("postgres://me@h/x", OPTIONS),
        ("postgresql+asyncpg://me@h/x", OPTIONS),
        ("postgresql+psycopg://me@h/x", OPTIONS),
        ("postgresql+psycopg2://me@h/x", OPTIONS),
        ("postgres+anything://me@h/x", OPTIONS),
        ("host=h user=me dbname=x", OPTIONS),
        ("  host = h user= 'me'\tdbname='x'  ", OPTIONS),
        ("postgresql://h?user=me&dbname=x", OPTIONS),
        ("postgresql:///x?host=h&user=me", OPTIONS),
        ("postgresql://me@h/y?database=x", OPTIONS),
        ("postgresql://me@h/x?application_name=web&client_encoding=utf8", OPTIONS),
        ("postgresql://me@h/x?keepalives=1&keepalives_idle=30&tcp_user_timeout=9", OPTIONS),
        ("postgresql://me@h/x?gssencmode=disable", OPTIONS | {"gssencmode": "disable"}),
        ("postgresql://me@h/x?connect_timeout=15", OPTIONS | {"connect_timeout": "15"}),
        ("postgresql://me@h/x?ssl=true", OPTIONS | {"sslmode": "require"}),
        ("postgresql://me@h/x?ssl=verify-full", OPTIONS | {"sslmode": "verify-full"}),
        ("postgresql://me:p%40%20q@h/x", OPTIONS | {"password": "p@ q"}),
        ("postgresql://me@h/x?password=a+b", OPTIONS | {"password": "a+b"}),
        (r"host=h user=me dbname=x password='a\' \\b=c'", OPTIONS | {"password": r"a' \b=c"}),
        (r"host=h user=me dbname=x password=a\ b'c", OPTIONS | {"password": "a b'c"}),
        ("host=h user=me dbname=x password=''", OPTIONS),
        ("postgresql://me@h/x?options=-c%20jit%3Doff", OPTIONS | {"options": "-c jit=off"}),
        ("postgresql://", {}),
    ],
)
def test_every_form_has_the_same_options(dsn: str, options: dict[str, str]) -> None:
    assert options_of(dsn) == options
    assert options_of(url_of(options)) == options


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql:///x", [("", "")]),
        ("postgresql://h:5433/x", [("h", "5433")]),
        ("postgresql://a,b:2,[::1]:3/x", [("a", ""), ("b", "2"), ("::1", "3")]),
        ("postgresql://[::1],a/x", [("::1", ""), ("a", "")]),
        ("postgresql:///x?host=a,b&port=1,2", [("a", "1"), ("b", "2")]),
        ("postgresql:///x?host=a:1&host=b:2", [("b", "2")]),
        ("host=a,::1 port=5433", [("a", "5433"), ("::1", "5433")]),
        ("postgresql://%2Frun%2Fpg:5433/x", [("/run/pg", "5433")]),
        ("host=/run/pg", [("/run/pg", "")]),
        ("hostaddr=10.0.0.1", [("10.0.0.1", "")]),
        ("host=a,b hostaddr=10.0.0.1,", [("10.0.0.1", ""), ("b", "")]),
    ],
)
def test_hosts(dsn: str, hosts: list[tuple[str, str]]) -> None:
    assert hosts_of(options_of(dsn)) == hosts
    assert hosts_of(options_of(url_of(options_of(dsn)))) == hosts


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        (
            "postgresql://me:s3cr3t@h/x?pgbouncer=true",
            "option pgbouncer: leave it out: notifyq de",
        ),
        ("postgresql://me:s3cr3t@h/x?pool_timeout=10", "option pool_timeout: leave it out"),
        ("postgresql://me:s3cr3t@h/x?connection_limit=1", "connection_limit: .* set pool_size"),
        ("postgresql://me:s3cr3t@h/x?schema=shop", "option schema: .* options=-c%20search_path%3D"),
        ("postgresql://me:s3cr3t@h/x?conect_timeout=1", "did you mean 'connect_timeout'?"),
        ("postgresql://me:s3cr3t@h/x?jit=off", "option jit, .* options=-c%20jit%3Dvalue"),
        ("host=h user=me pool_size=3 password=s3cr3t", "the DSN has the option pool_size"),
        ("postgresql://me:s3cr3t@h/x?gssencmode=require", "gssencmode, .* disable, prefer: choose"),
        ("postgresql://me:s3cr3t@h/x?replication=database", "option replication"),
        ("postgresql://me:s3cr3t@h/x?require_auth=scram-sha-256", "option require_auth, which"),
        ("postgresql://me:s3cr3t@h/x?connect_timeout=soon", "connect_timeout in the DSN must be a"),
        ("postgresql://me:s3cr3t@h:port/x", "cannot be used: it must look like"),
        ("postgresql://me:s3cr3t@h:70000/x", "cannot be used: it must look like"),
        ("postgresql://me:s3cr3t@h/x?sslmode", "cannot be used: it must look like"),
        ("postgresql://h/x?user=me&password=s3cr3t&s3cr3t=1", "cannot be used: it must look like"),
        ("host=h password=s3cr3t s3cr3t=1", "cannot be used: it must look like"),
        ("host=h password='s3cr3t", "cannot be used: it must look like"),
        ("mysql://me:s3cr3t@h/x", "cannot be used: its scheme is mysql, it must look like"),
        ("x", "cannot be used: it must look like"),
        ("host=a,b port=1,2,3", "one port, or one for each host"),
        ("host=a,b hostaddr=10.0.0.1", "as many addresses in hostaddr as hosts"),
        ("host=a hostaddr=10.0.0.1 sslmode=verify-full", "leave out hostaddr"),
        ("host=a sslrootcert=system sslmode=require", "sslrootcert=system in the DSN needs"),
    ],
)
def test_what_has_no_meaning_here_is_one_clear_error(dsn: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        targets(dsn)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in masked(dsn)


def test_a_list_of_hosts_is_one_target_each() -> None:
    found = targets("postgresql://me@a,[::1]:3/x?target_session_attrs=read-write")
    query = "target_session_attrs=read-write"
    assert [it.url for it in found] == [
        f"postgresql://me@a/x?{query}",
        f"postgresql://me@[::1]:3/x?{query}",
    ]
    assert [it.name for it in found] == ["a", "::1:3"]
    assert all(it.is_primary for it in found)


def test_prefer_standby_is_one_target() -> None:
    [found] = targets("postgresql://me@a,[::1]:3/x?target_session_attrs=prefer-standby")
    assert "host=a%2C%5B%3A%3A1%5D&port=5432%2C3" in found.url
    assert not found.is_primary


def test_channel_binding_verifies_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = "postgresql://me:s3cr3t@ep.neon.tech/x?sslmode=require&channel_binding=require"
    [found] = targets(dsn)
    assert found.tls
    assert "sslmode=verify-full" in found.url
    assert "channel_binding" not in found.url
    [found] = targets(f"{dsn}&sslrootcert=/ca.pem")
    assert found.tls is None
    assert "sslmode=verify-full&sslrootcert=/ca.pem" in found.url
    monkeypatch.setenv("PGSSLROOTCERT", "/ca.pem")
    assert targets(dsn)[0].tls is None
    assert targets("host=h channel_binding=prefer")[0].url == "postgresql://h"


@pytest.mark.parametrize(
    ("dsn", "seconds"),
    [("host=h", None), ("host=h connect_timeout=3", 3), ("host=h connect_timeout=0", 86_400)],
)
def test_the_time_to_connect(dsn: str, seconds: float | None) -> None:
    assert targets(dsn)[0].timeout == seconds


def test_hosts_are_balanced() -> None:
    dsn = "postgresql://a,b,c/x?load_balance_hosts="
    assert [it.name[0] for it in targets(f"{dsn}disable")] == ["a", "b", "c"]
    firsts = {targets(f"{dsn}random")[0].name for _ in range(200)}
    assert len(firsts) == 3


def test_a_service_fills_in_what_the_dsn_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, system = tmp_path / "own", tmp_path / "pg_service.conf"
    own.write_text("# ours\n[shop]\nhost=h\nuser=me\npassword=10%s3cr3t=x\nsslmode=require\n")
    system.write_text("[all]\nhost=everybody\n")
    monkeypatch.setenv("PGSERVICEFILE", str(own))
    monkeypatch.setenv("PGSYSCONFDIR", str(tmp_path))
    theirs = {"host": "h", "user": "me", "password": "10%s3cr3t=x", "sslmode": "require"}
    for dsn in ("postgresql://?service=shop", "service=shop"):
        assert options_of(dsn) == theirs
    assert options_of("service=shop user=you") == theirs | {"user": "you"}
    assert options_of("postgresql://?service=all") == {"host": "everybody"}
    monkeypatch.setenv("PGSERVICE", "shop")
    assert options_of("dbname=x") == theirs | {"dbname": "x"}
    with pytest.raises(ConfigurationError, match="there is no service 'none' in"):
        options_of("service=none")
    own.write_text("[shop]\ns3cr3t\n")
    with pytest.raises(ConfigurationError, match=r"the service file .* cannot be read") as caught:
        options_of("service=shop")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("dsn", "user", "result"),
    [
        ("postgresql://me:p@h:1/x", "me", "postgresql://me:p@h:1/a%20b"),
        ("postgresql://me:p@h:1/x", "you", "postgresql://you@h:1/a%20b"),
        ("postgresql+asyncpg://h/x?user=me&password=p", "you", "postgresql://you@h/a%20b"),
        ("host=h user=me password=p connect_timeout=3", "you",
         "postgresql://you@h/a%20b?connect_timeout=3"),
        ("postgresql://me@a,[::1]/x", "me", "postgresql://me@/a%20b?host=a%2C%5B%3A%3A1%5D"),
    ],
)  # fmt: skip
def test_another_user_and_database(dsn: str, user: str, result: str) -> None:
    assert with_user(dsn, user, "a b") == result
    assert options_of(with_database(dsn, "a b")) == options_of(dsn) | {"dbname": "a b"}
