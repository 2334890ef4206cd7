"""The logins of docker-compose.yml, made by the entrypoint of the server as a container runs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from notifyq.server import debian_binaries
from support.database import ROOT
from support.ports import free_port

pytestmark = pytest.mark.timeout(240)

LOGINS = {
    "queue_publisher": ("NOTIFYQ_PUBLISHER_PASSWORD", "notifyq_publisher"),
    "queue_worker": ("NOTIFYQ_WORKER_PASSWORD", "notifyq_worker"),
    "queue_reader": ("NOTIFYQ_READER_PASSWORD", "notifyq_reader"),
    "queue_admin": ("NOTIFYQ_ADMIN_PASSWORD", "notifyq_admin"),
    "queue_dashboard": ("NOTIFYQ_DASHBOARD_DB_PASSWORD", "notifyq_reader"),
}
# What a URL, a shell or SQL could stumble over.
PASSWORDS = {variable: f"{name}'s \\ p@ss/w:rd $1 %" for name, (variable, _) in LOGINS.items()}


PAGES = ("", "queues", "queue?name=default", "messages", "dead", "streams", "workers", "schedules",
         "health", "audit")  # fmt: skip


class Container:
    """The server that db/entrypoint.sh starts, in a folder instead of a container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"

    def start(self, **environment: str) -> None:
        binaries = debian_binaries()
        assert binaries is not None
        version = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r"\d+", version)
        assert found is not None
        user = {"user": "postgres"} if os.getuid() == 0 else {}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", self.folder / "db/entrypoint.sh",
                 *("-p", str(self.port), "-c", f"unix_socket_directories={self.folder}")],
                env={"PATH": f"{binaries}:/usr/bin:/bin", "PGDATA": str(self.folder / "data"),
                     "PG_MAJOR": found[0], "PGHOST": str(self.folder), "PGPORT": str(self.port),
                     "LANG": "C.UTF-8", "HOME": str(self.folder), "POSTGRES_PASSWORD": "the first",
                     "NOTIFYQ_INIT_FILES": str(self.folder / "db/init"),
                     "NOTIFYQ_LOGINS": str(self.folder / "db/logins.psql"),
                     "PGOPTIONS": "", **PASSWORDS, **environment},
                stdout=log, stderr=log, cwd=self.folder, **user,  # type: ignore[call-overload]
            )  # fmt: skip

    async def ready(self) -> None:
        assert self.process is not None
        while True:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            with contextlib.suppress(OSError, asyncpg.CannotConnectNowError):
                await (await self.login("postgres", "the first")).close()
                return
            await asyncio.sleep(0.05)

    async def login(self, user: str, password: str) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            host="127.0.0.1", port=self.port, user=user, password=password, database="notifyq"
        )

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(2)
            self.process.wait(60)
        pids = self.folder / "data/postmaster.pid"
        if pids.exists():  # of a start that failed
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pids.read_text().split()[0]), 3)

    def environment(self, login: str) -> dict[str, str]:
        variable, _ = LOGINS[login]
        clean = {name: it for name, it in os.environ.items() if not name.startswith("NOTIFYQ_")}
        dsn = f"postgresql://{login}@127.0.0.1:{self.port}/notifyq"
        return {**clean, "NOTIFYQ_DSN": dsn, "PGPASSWORD": PASSWORDS[variable],
                "PYTHONPATH": str(ROOT / "workers")}  # fmt: skip

    def notifyq(self, login: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "notifyq", *args], env=self.environment(login),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    binaries = debian_binaries()
    if binaries is None or (not (binaries / "psql").exists() and not shutil.which("psql")):
        pytest.skip("there is no PostgreSQL of Debian")
    with tempfile.TemporaryDirectory(prefix="nq-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "db", folder / "db")
        # The socket's folder is another one than Debian's, also for the server of the first start.
        script = (folder / "db/entrypoint.sh").read_text()
        (folder / "db/entrypoint.sh").write_text(
            script.replace(
                "-c listen_addresses=''", f"-p $PGPORT -k {folder} -c listen_addresses=''"
            )
        )
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            for path in (folder, *folder.rglob("*")):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        made = Container(folder)
        made.start()
        try:
            yield made
        finally:
            made.stop()


async def roles(container: Container) -> dict[str, set[str]]:
    connection = await container.login("postgres", "the first")
    try:
        rows = await connection.fetch(
            "select a.rolname, a.rolsuper or a.rolcreaterole or a.rolcreatedb or a.rolreplication "
            "or a.rolbypassrls as is_mighty, a.rolpassword, array_agg(m.roleid::regrole::text) "
            "from pg_authid as a left join pg_auth_members as m on m.member = a.oid "
            "where a.rolname like 'queue\\_%' group by a.oid, 1, 2, 3"
        )
    finally:
        await connection.close()
    for row in rows:
        assert not row["is_mighty"]
        assert row["rolpassword"].startswith("SCRAM-SHA-256$")
    return {row["rolname"]: {*row["array_agg"]} for row in rows}


async def test_each_login_can_do_its_task_only(container: Container) -> None:
    await container.ready()
    assert await roles(container) == {name: {role} for name, (_, role) in LOGINS.items()}
    for name, (variable, _) in LOGINS.items():
        await (await container.login(name, PASSWORDS[variable])).close()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await container.login(name, "wrong")
    for password in PASSWORDS.values():
        assert password not in container.log.read_text()
    for login, args, code in (
        ("queue_publisher", ("publish", "default", '"kept"', "--delay", "1h"), 0),
        ("queue_worker", ("publish", "default", "1"), 1),
        ("queue_reader", ("publish", "default", "1"), 1),
        ("queue_reader", ("ls",), 0),
        ("queue_dashboard", ("queues", "pause", "default"), 1),
        ("queue_publisher", ("ls",), 1),
        ("queue_admin", ("queues", "create", "mail"), 0),
    ):
        done = container.notifyq(login, *args)
        assert done.returncode == code, (login, args, done)
        assert ("permission denied" in done.stderr) == (code == 1), (login, args, done)


@contextlib.asynccontextmanager
async def running(
    container: Container, login: str, *args: str, **more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "notifyq", *args, env={**container.environment(login), **more},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def test_the_services_work_as_their_logins(container: Container) -> None:
    await container.ready()
    async with (
        asyncio.timeout(90),
        running(container, "queue_reader", "dead", "watch") as watch,
        running(container, "queue_worker", "worker", "echo:app"),
    ):
        assert watch.stdout is not None
        assert watch.stderr is not None
        # It reports what fails from the moment that it listens.
        while b"listening, in session" not in (line := await watch.stderr.readline()):
            assert line, "the watch ended"
        published = container.notifyq(
            "queue_publisher", "publish", "default", '{"reject": "bad order"}'
        )
        assert published.returncode == 0
        assert b"bad order" in await watch.stdout.readline()
        seen = container.notifyq("queue_reader", "ping", "--as", "notifyq dead watch")
        assert seen.returncode == 0


async def test_the_dashboard_works_as_its_login(container: Container) -> None:
    await container.ready()
    async with asyncio.timeout(120):
        async with running(
            container, "queue_dashboard", "dashboard", "--port", "0", "--allow-writes"
        ) as served:
            assert served.stdout is not None
            found = re.search(rb"http://[0-9.:]+", await served.stdout.readline())
            assert found is not None
            base = found[0].decode()
            async with httpx.AsyncClient(base_url=base, headers={"origin": base}) as client:
                for page in PAGES:
                    answer = await client.get(f"/{page}")
                    assert answer.status_code == 200, (page, answer.text.partition("<main")[2])
                token = re.search(
                    r'name="csrf" value="([^"]+)"', (await client.get("/queues")).text
                )
                assert token is not None
                data = {"csrf": token[1], "name": "default", "back": "/queues"}
                answer = await client.post("/queues/pause", data=data)
                # Its login may not, whatever the dashboard may.
                assert answer.status_code in {303, 403}
    connection = await container.login("postgres", "the first")
    assert not await connection.fetchval("select bool_or(paused) from messages.queue")
    await connection.close()


async def test_a_login_without_pg_cron_sees_and_stops_its_own_schedules(
    container: Container,
) -> None:
    await container.ready()
    connection = await container.login("queue_admin", PASSWORDS["NOTIFYQ_ADMIN_PASSWORD"])
    assert not await connection.fetchval("select has_schema_privilege('cron', 'usage')")
    assert await connection.fetch("select * from messages.cron_entries()") == []
    assert await connection.fetch("select * from messages.health()")
    assert await connection.fetchval("select messages.stop_broker(patience => '0')") is False
    with pytest.raises(asyncpg.InsufficientPrivilegeError) as refused:
        await connection.execute("select messages.start_broker()")
    assert "notifyq broker" in (refused.value.hint or "")
    await connection.close()


async def test_a_restart_applies_changed_passwords(container: Container) -> None:
    await container.ready()
    connection = await container.login("postgres", "the first")
    await connection.execute("drop role queue_reader; grant pg_read_all_stats to queue_dashboard")
    await connection.close()
    container.stop()
    container.start(
        NOTIFYQ_WORKER_PASSWORD="another", NOTIFYQ_DASHBOARD_ROLE="notifyq_admin",
        NOTIFYQ_PUBLISHER_PASSWORD="",
    )  # fmt: skip
    await container.ready()
    found = await roles(container)
    assert found["queue_dashboard"] == {"notifyq_admin", "pg_read_all_stats"}
    assert found["queue_reader"] == {"notifyq_reader"}
    await (await container.login("queue_worker", "another")).close()
    # One that is not given stays as it is.
    await (
        await container.login("queue_publisher", PASSWORDS["NOTIFYQ_PUBLISHER_PASSWORD"])
    ).close()
    container.stop()
    container.start(NOTIFYQ_DASHBOARD_ROLE="notifyq_owner")
    assert container.process is not None
    assert await asyncio.to_thread(container.process.wait, 120) != 0
    assert "must be notifyq_reader or notifyq_admin" in container.log.read_text()


def test_no_service_is_a_superuser() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"DSN: postgresql://postgres", text)
    users = re.findall(r"NOTIFYQ_DSN: postgresql://([^@]*)@", text)
    assert sorted(users) == sorted(LOGINS)
    # Each password of a service is also one of the server.
    assert {*re.findall(r"PGPASSWORD: \$\{(\w+)", text)} == {*PASSWORDS}
    settings = (ROOT / ".env.example").read_text()
    for variable in re.findall(r"\$\{(NOTIFYQ_\w+)", text):
        assert variable in settings, variable
