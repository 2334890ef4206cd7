"""Every form of a DSN connects to the server of the tests."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from notifyq.database.pool import Database, connect
from notifyq.dsn import options_of, url_of
from notifyq.errors import ConfigurationError

PRISMA = "&connect_timeout=15&pgbouncer=true"
FORMS = [
    "postgresql://{login}@{host}:{port}/{name}",
    "postgres://{login}@{host}:{port}/{name}",
    "postgresql+asyncpg://{login}@{host}:{port}/{name}",
    "postgresql+psycopg://{login}@{host}:{port}/{name}",
    "postgresql://{login}@{host}:{port}/{name}?channel_binding=prefer&gssencmode=disable",
    "postgresql://{login}@{host}:{port}/{name}?connect_timeout=0",
    "postgresql://{login}@{host}:{port}/{name}?keepalives=1&keepalives_idle=30&tcp_user_timeout=9",
    "postgresql://{login}@{host}:{port}/{name}?application_name=web&options=-c%20jit%3Doff",
    "postgresql://{login}@/{name}?host={host}&port={port}&sslmode=prefer",
    "postgresql://?host={host}&port={port}&dbname={name}&user={user}&password={password}",
    "postgresql://{login}@[::1]:1,{host}:{port}/{name}",
    "postgresql://{login}@{host}:1,[::1]:1,{host}:{port}/{name}?target_session_attrs=read-write",
    "postgresql://{login}@{host}:{port},[::1]:1/{name}?target_session_attrs=prefer-standby",
    "postgresql://{login}@{host}:{port},{host}:{port}/{name}?load_balance_hosts=random",
    "host={host} port={port} dbname='{name}' user={user} password='{raw}'",
    "host=no.such.host.invalid hostaddr={host} port={port} dbname={name} user={user} "
    "password='{raw}'",
    "host=::1,{host} port=1,{port} dbname={name} user={user} password='{raw}' connect_timeout=3",
]


def parts(server: str) -> dict[str, str]:
    given = options_of(server)
    user, raw = given.get("user", ""), given.get("password", "")
    password = quote(raw or "any", safe="")
    return {
        "login": f"{quote(user, safe='')}:{password}",
        "user": user,
        "password": password,
        "raw": (raw or "any").replace("\\", "\\\\").replace("'", "\\'"),
        "host": given["host"],
        "port": given.get("port", "5432"),
        "name": given["dbname"],
    }


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_connects(server: str, form: str) -> None:
    given = parts(server)
    async with Database(form.format(**given)) as database:
        assert await database.value("select current_database()") == given["name"]


async def test_options_of_the_server_are_set(server: str) -> None:
    url = url_of(options_of(server) | {"options": "-c work_mem=123kB"})
    async with Database(url) as database:
        assert await database.value("show work_mem") == "123kB"


async def test_a_service_is_read_again_for_each_connection(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = parts(server)
    file = tmp_path / "services"
    lines = ("host={host}", "port={port}", "dbname={name}", "user={user}", "password={raw}")
    file.write_text("[shop]\n" + "\n".join(lines).format(**given))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    async with Database("service=shop") as database:
        assert await database.value("select current_database()") == given["name"]
        file.write_text("[shop]\nhost=h\npgbouncer=true\n")
        (await database.open()).terminate()
        await database.close()
        with pytest.raises(ConfigurationError, match="option pgbouncer: leave it out"):
            await database.value("select 1")


async def test_the_error_of_a_list_names_each_host(server: str) -> None:
    given = parts(server)
    form = "postgresql+asyncpg://{login}@[::1]:1,{host}:1/{name}"
    with pytest.raises(Exception, match=r"::1:1: .*; .*:1: ") as caught:
        await connect(form.format(**given))
    assert given["login"] not in str(caught.value)


async def test_an_option_of_prisma_is_one_clear_error(server: str) -> None:
    with pytest.raises(ConfigurationError, match=r"pgbouncer: .*listen_dsn or NOTIFYQ_LISTEN_DSN"):
        await connect(f"{server}?sslmode=prefer{PRISMA}")
