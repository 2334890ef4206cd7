"""`notifyq roles`: a login for each duty may do that, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from cli.programs import Notifyq
from cli.test_refusals import with_login
from support.database import session

PASSWORD = "it's \\ p@ss/w:rd $1 %"
DUTIES = ("publisher", "worker", "viewer", "reader", "admin", "dashboard")
VARIABLES = {
    f"NOTIFYQ_{'DASHBOARD_DB' if it == 'dashboard' else it.upper()}_PASSWORD": f"{PASSWORD} {it}"
    for it in DUTIES
}


@pytest.fixture
def prefix(notifyq: Notifyq, worker_id: str) -> Iterator[str]:
    """Give a prefix of names, whose logins are dropped at the end: roles are of the server."""
    name = f"shop_{worker_id}"
    yield name

    async def drop() -> None:
        async with session(notifyq.dsn or "") as connection:
            for duty in DUTIES:
                if await connection.fetchval(f"select to_regrole('{name}_{duty}')"):
                    await connection.execute(f"drop owned by {name}_{duty}")
                    await connection.execute(f"drop role {name}_{duty}")

    asyncio.run(drop())


async def test_each_login_may_do_its_duty_and_no_more(notifyq: Notifyq, prefix: str) -> None:
    notifyq.good("queues", "create", "mail")
    printed = notifyq.good("roles", "create", "--prefix", prefix, env=VARIABLES)
    assert printed.out.splitlines()[0] == (
        f"created {prefix}_publisher, a member of notifyq_publisher"
    )
    assert len(printed.out.splitlines()) == 6
    statements = {
        "publisher": "select messages.publish('mail', '{}')",
        "worker": "select id from messages.claim(array['mail'])",
        "viewer": "select * from notifyq.readable_archive",
        "reader": "select * from messages.message_archive",
        "admin": "select messages.pause_queue('mail')",
    }
    for duty in DUTIES:
        login = quote(f"{prefix}_{duty}", safe="")
        password = quote(f"{PASSWORD} {duty}", safe="")
        async with session(with_login(notifyq.dsn or "", f"{login}:{password}")) as connection:
            own = "reader" if duty == "dashboard" else duty
            # An admin may do what the others may.
            for other, statement in statements.items():
                if own in {other, "admin"} or (own, other) == ("reader", "viewer"):
                    await connection.execute(statement)
                else:
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute(statement)
            # Back to the login is all that a session may.
            await connection.execute("reset role")
            assert await connection.fetchval("select current_user") == f"{prefix}_{duty}"
            for role in ("notifyq_owner", "postgres"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(f"set role {role}")


async def test_the_server_gets_verifiers_only(notifyq: Notifyq, prefix: str) -> None:
    notifyq.good("roles", "create", "reader", "--prefix", prefix, env=VARIABLES)
    async with session(notifyq.dsn or "") as connection:
        stored = await connection.fetchval(
            "select rolpassword from pg_authid where rolname = $1", f"{prefix}_reader"
        )
        assert stored.startswith("SCRAM-SHA-256$4096:")
        assert PASSWORD not in str(await connection.fetch("select * from messages.audit_list()"))
    noted = notifyq.good("audit", "--action", "role.create", "--json").data[0]
    assert noted["details"] == {"names": [f"{prefix}_reader"]}


async def test_a_login_gets_a_new_password(notifyq: Notifyq, prefix: str) -> None:
    variable = "NOTIFYQ_READER_PASSWORD"
    create = ("roles", "create", "--prefix", prefix, "--json")
    [first] = notifyq.good(*create, env={variable: "old"}).data
    [second] = notifyq.good(*create, env={variable: "new"}).data
    assert first == {"name": f"{prefix}_reader", "role": "notifyq_reader", "created": True}
    assert second == {**first, "created": False}
    with pytest.raises(asyncpg.InvalidPasswordError):
        async with session(with_login(notifyq.dsn or "", f"{prefix}_reader:old")):
            pass
    async with session(with_login(notifyq.dsn or "", f"{prefix}_reader:new")) as connection:
        assert await connection.fetchval("select current_user") == f"{prefix}_reader"


async def test_a_login_that_may_more_is_refused(notifyq: Notifyq, prefix: str) -> None:
    env = {"NOTIFYQ_READER_PASSWORD": "x"}
    async with session(notifyq.dsn or "") as connection:
        await connection.execute(f"create role {prefix}_reader in role notifyq_admin")
    line = notifyq.refused("roles", "create", "--prefix", prefix, env=env)
    assert line == (
        f"notifyq: role '{prefix}_reader' exists and may do more than a reader: give another "
        "--prefix\n"
    )
    async with session(notifyq.dsn or "") as connection:
        assert not await connection.fetchval(
            "select rolcanlogin from pg_roles where rolname = $1", f"{prefix}_reader"
        )


def test_passwords_that_are_missing_or_cannot_be_used(notifyq: Notifyq, prefix: str) -> None:
    assert notifyq.refused("roles", "create").startswith(
        "notifyq: no password is set: set those of NOTIFYQ_PUBLISHER_PASSWORD, "
    )
    assert notifyq.refused("roles", "create", "admin", env={"NOTIFYQ_READER_PASSWORD": "x"}) == (
        "notifyq: NOTIFYQ_ADMIN_PASSWORD is not set: it has the password of the admin\n"
    )
    env = {"NOTIFYQ_READER_PASSWORD": "pässword"}
    assert notifyq.refused("roles", "create", "--prefix", prefix, env=env) == (
        "notifyq: NOTIFYQ_READER_PASSWORD may have printable ASCII characters only\n"
    )
    assert notifyq.good("roles", "ls", "--json").data != []


def test_logins_are_listed(notifyq: Notifyq, prefix: str) -> None:
    notifyq.good("roles", "create", "worker", "--prefix", prefix, env=VARIABLES)
    mine = [it for it in notifyq.good("roles", "--json").data if it["name"].startswith(prefix)]
    assert mine == [{"name": f"{prefix}_worker", "duties": ["worker"], "superuser": False}]


async def test_a_viewer_sees_the_queues_that_were_granted_to_it(
    notifyq: Notifyq, prefix: str, tmp_path: Path
) -> None:
    env = {"NOTIFYQ_VIEWER_PASSWORD": "x"}
    notifyq.good("roles", "create", "viewer", "--prefix", prefix, env=env)
    ids = {}
    for name in ("mine", "theirs"):
        notifyq.good("queues", "create", name)
        ids[name] = notifyq.good("publish", name, f'"of {name}"').out.strip()
        notifyq.good("cancel", ids[name])
        notifyq.good("publish", name, f'"of {name}"')
    login = f"{prefix}_viewer"
    assert notifyq.good("queues", "grant", "mine", login, "--read").out == (
        f"granted mine to {login}\n"
    )
    assert notifyq.good("queues", "grant", "mine", login, "--read").out == (
        f"{login} has that grant already\n"
    )
    [row] = notifyq.good("queues", "grants", "--json").data
    assert (row["role"], row["may_publish"], row["may_read"]) == (login, False, True)
    file = tmp_path / "archive.csv"
    variables = {"NOTIFYQ_DSN": with_login(notifyq.dsn or "", f"{login}:x")}
    printed = [
        notifyq.good(*command, env=variables).out
        for command in (
            ("ls",),
            ("ls", "--finished"),
            ("parked",),
            ("queues",),
            ("queues", "grants"),
            ("dead",),
            ("dead", "groups"),
            ("stream",),
            ("schedules",),
            ("show", ids["mine"]),
            ("archive", "export", str(file)),
        )
    ]
    assert "theirs" not in "".join(printed) + file.read_text()
    assert "of mine" in file.read_text()
    assert notifyq.refused("show", ids["theirs"], env=variables) == (
        f"notifyq: there is no message {ids['theirs']}, neither live nor archived\n"
    )
    assert notifyq.refused("queues", "show", "theirs", env=variables) == (
        f"notifyq: role {login} may not read queue 'theirs': an admin can allow it with "
        "`notifyq queues grant`, to read with --read\n"
    )
    assert notifyq.good("queues", "revoke", "mine", login).out == f"revoked mine from {login}\n"
    assert notifyq.good("queues", "--json", env=variables).data == []
