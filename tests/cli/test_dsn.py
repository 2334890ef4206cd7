"""How a command gets its database, and that no other user can read the password."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from cli.programs import Notifyq, Running

SECRET = "s3cr3t"
NOWHERE = f"postgresql://me:{SECRET}@127.0.0.1:1/x"
PROGRAM = """
import notifyq

app = notifyq.App("postgresql://127.0.0.1:1/nowhere", pool_size=1)

@app.handler("good")
async def good(_: int) -> None: ...
"""
WARNING = (
    "notifyq: every user of this machine can read the password in --dsn, in the list of processes: "
    "use --dsn-file, NOTIFYQ_DSN, a service file or ~/.pgpass\n"
)


def write(folder: Path, dsn: str, *, name: str = "dsn", mode: int = 0o600) -> Path:
    file = folder / name
    file.write_text(dsn + "\n")
    file.chmod(mode)
    return file


@pytest.fixture
def file(tmp_path: Path, shared_database: str) -> Path:
    return write(tmp_path, shared_database)


@pytest.mark.parametrize(
    "args",
    [
        ("ping", "--dsn-file", "{}"),
        ("ping", "--dsn-file={}"),
        ("--dsn-file", "{}", "queues", "--json"),
        ("queues", "--dsn-file", "{}"),
        ("queues", "create", "--dsn-file", "{}", "--", "in-a-file"),
        ("dead", "ls", "--dsn-file", "{}", "--json"),
        ("publish", "default", "1", "--dsn-file", "{}"),
    ],
)
def test_every_command_takes_a_file(anywhere: Notifyq, file: Path, args: tuple[str, ...]) -> None:
    anywhere.good(*(arg.format(file) for arg in args))


def test_a_file_of_the_environment(anywhere: Notifyq, file: Path) -> None:
    anywhere.good("ping", env={"NOTIFYQ_DSN_FILE": str(file)})
    # The address itself wins, as an option wins over both.
    assert "no connection" in anywhere.refused(
        "ping", env={"NOTIFYQ_DSN_FILE": str(file), "NOTIFYQ_DSN": NOWHERE}
    )
    anywhere.good("ping", "--dsn-file", str(file), env={"NOTIFYQ_DSN": NOWHERE})


def test_arguments_after_two_dashes_are_no_options(anywhere: Notifyq, file: Path) -> None:
    line = anywhere.refused(
        *("publish", "default", "--", "--dsn-file"), env={"NOTIFYQ_DSN_FILE": str(file)}
    )
    assert "the message is not JSON" in line


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--dsn-file",), "--dsn-file is empty"),
        (("--dsn-file=",), "--dsn-file is empty"),
        (("--dsn-file", "a", "--dsn", NOWHERE), "--dsn or --dsn-file is given twice"),
        ((f"--dsn={NOWHERE}", "--dsn-file=a"), "--dsn or --dsn-file is given twice"),
        (("--dsn", NOWHERE, "--dsn", NOWHERE), "--dsn or --dsn-file is given twice"),
    ],
)
def test_options_that_contradict_each_other(
    anywhere: Notifyq, args: tuple[str, ...], reason: str
) -> None:
    line = anywhere.refused("ping", *args, code=2)
    assert reason in line
    assert SECRET not in line


def test_a_file_that_others_may_read_is_refused(anywhere: Notifyq, tmp_path: Path) -> None:
    file = write(tmp_path, NOWHERE, mode=0o644)
    for args, env in (
        (["ping"], {"NOTIFYQ_DSN_FILE": str(file)}),
        (["ping", "--dsn-file", str(file)], {}),
    ):
        line = anywhere.refused(*args, env=env)
        assert f"the DSN file {file} may be read by others: `chmod 600` it" in line
        assert SECRET not in line


def test_a_password_in_the_arguments_causes_one_warning(
    anywhere: Notifyq, shared_database: str, server: str
) -> None:
    result = anywhere("ping", "--dsn", shared_database)
    has_password = urlsplit(server).password is not None
    assert (result.code, result.out, result.err) == (0, "ok\n", WARNING if has_password else "")
    result = anywhere("ping", f"--dsn={NOWHERE}")
    assert result.code == 1
    assert result.err.startswith(WARNING)
    assert SECRET not in result.err
    assert "password" not in anywhere.refused("ping", "--dsn", "postgresql://127.0.0.1:1/x")


ODD = [":", "@", "/", "?", "#", "&", "=", "%", "[", " ", "+", "ä", "'"]
FORMS = [
    "postgresql://me:{}@127.0.0.1:1/x",
    "postgresql://me:{}@no.such.host.invalid/x",
    "postgresql://me:{}@127.0.0.1:port/x",
    "postgresql://me:{}@127.0.0.1:99999/x",
    "postgresql://127.0.0.1:1/x?user=me&password={}",
    "postgresql://me:{}@/x?host=/no/such/folder",
]


@pytest.mark.parametrize("form", FORMS)
def test_no_output_has_any_part_of_the_password(
    anywhere: Notifyq, tmp_path: Path, form: str
) -> None:
    raw = [f"{SECRET}{odd}{SECRET}" for odd in ODD]
    for number, password in enumerate([*raw, *(quote(text, safe="") for text in raw)]):
        dsn = form.format(password)
        args, env = [
            (["ping", "--dsn-file", str(write(tmp_path, dsn))], {}),
            (["queues", "--debug"], {"NOTIFYQ_DSN": dsn}),
            (["ping", "--dsn", dsn], {}),
        ][number % 3]
        result = anywhere(*args, env=env)
        assert result.code == 1
        assert SECRET not in result.out + result.err, (args, dsn)


@pytest.mark.parametrize("form", ["passfile", "service"])
def test_files_of_libpq_are_read(
    anywhere: Notifyq, shared_database: str, tmp_path: Path, form: str
) -> None:
    parts = urlsplit(shared_database)
    port = parts.port or 5432
    if form == "passfile":
        login = f"{parts.hostname}:{port}:*:{parts.username}:{parts.password or ''}"
        files = {"PGPASSFILE": str(write(tmp_path, login))}
        dsn = f"postgresql://{parts.username}@{parts.hostname}:{port}{parts.path}"
    else:
        service = (
            f"[billing]\nhost={parts.hostname}\nport={port}\nuser={parts.username}\n"
            f"password={parts.password or ''}\ndbname={parts.path[1:]}"
        )
        files = {"PGSERVICEFILE": str(write(tmp_path, service))}
        dsn = "postgresql://?service=billing"
    anywhere.good("ping", "--dsn", dsn, env=files)


@contextmanager
def ours(running: Running) -> Iterator[list[Path]]:
    """Give the folders in /proc of the processes that the command has started."""
    parents = {running.process.pid}
    found: list[Path] = []
    while parents:
        parents = {
            int(child)
            for pid in parents
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for child in (thread / "children").read_text().split()
        }
        found += [Path(f"/proc/{pid}") for pid in parents]
    yield found


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="there is no /proc")
@pytest.mark.parametrize("way", ["--dsn", "--dsn=", "--dsn-file", "NOTIFYQ_DSN"])
def test_child_processes_have_no_password_in_their_arguments(
    shared_database: str, tmp_path: Path, way: str
) -> None:
    (tmp_path / "handlers.py").write_text(
        PROGRAM
        if way.startswith("--")
        else PROGRAM.replace('"postgresql://127.0.0.1:1/nowhere", ', "")
    )
    parts = urlsplit(shared_database)
    password = parts.password or SECRET  # a server with trust authentication ignores it
    login = f"{parts.username or 'postgres'}:{password}@{parts.netloc.rpartition('@')[2]}"
    shared_database = urlunsplit(parts._replace(netloc=login))
    given = {
        "--dsn": ["--dsn", shared_database],
        "--dsn=": [f"--dsn={shared_database}"],
        "--dsn-file": ["--dsn-file", str(write(tmp_path, shared_database))],
    }.get(way, [])
    address = "" if given else shared_database
    args = ["worker", "handlers:app", "--processes", "2", *given]
    with Running(address, *args, cwd=tmp_path) as worker:
        for _ in range(2):
            worker.logged(" has started")
        with ours(worker) as processes:
            assert len(processes) == 2
            for process in processes:
                assert password not in (process / "cmdline").read_text()
                assert "notifyq" in (process / "cmdline").read_text()
        result = worker.stop(signal.SIGTERM)
    assert result.code == 0
    assert password not in result.err
    assert result.err.count("can read the password") == way.startswith("--dsn") - (
        way == "--dsn-file"
    )
