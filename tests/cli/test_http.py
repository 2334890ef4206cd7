"""`notifyq worker --http`: with and without an app, killed, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cli.programs import Notifyq, Running
from integrations.receiver import Answer, Receiver, call, receiving
from support.database import Connection, until

SECRET = {"NOTIFYQ_HTTP_SECRET": "new old"}
APP = """
import notifyq
app = notifyq.App()

@app.handler("own")
async def handle(n: int) -> int:
    return n + 1
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(APP)
    return tmp_path


async def result(connection: Connection, id_: int) -> object:
    """Wait for the end of a message and return its result."""
    ended: list[object] = []

    async def has_ended() -> bool:
        row = await connection.fetchrow("select * from messages.archive_find($1)", id_)
        ended[:] = [] if row is None else [row["result"]]
        return row is not None

    await until(has_ended, "the message is archived", 30)
    return ended[0]


async def test_without_an_app_and_with_a_callback(
    database: str, connection: Connection, receiver: Receiver, folder: Path
) -> None:
    await connection.execute("select messages.create_queue('hooks')")
    receiver.answer = lambda _: Answer(202)
    url = receiver.url.replace("//", "//me:s3cr3t@") + "/t0ken?key=t0ken"
    secret = folder / "secret"
    secret.write_text("new\nold\n")
    secret.chmod(0o600)
    args = ["--http-secret-file", str(secret), "--http-listen", "127.0.0.1:0"]
    args += ["--http-callback", "https://shop.example/base", "--log-level", "debug"]
    env = {"NOTIFYQ_HTTP": f"hooks={url}"}
    with Running(database, "worker", *args, env=env, cwd=folder) as worker:
        line = worker.logged("callbacks are taken at ")
        id_ = await connection.fetchval("select messages.publish('hooks', '{\"a\": 1}')")
        [request] = await receiver.received()
        path = urlsplit(request.headers["notifyq-callback"]).path
        assert path.startswith(f"/base/{id_}/")
        body = json.dumps({"status": "success", "result": 7}).encode()
        address = line.rpartition(" ")[2].strip() + path
        assert (await asyncio.to_thread(call, address, body))[0] == 200
        assert await result(connection, id_) == 7
        ended = worker.stop(signal.SIGTERM)
    assert ended.code == 0
    assert "s3cr3t" not in ended.err
    assert "t0ken" not in ended.err
    assert path not in ended.err
    assert request.headers["authorization"].startswith("Basic ")
    assert len(request.headers["webhook-signature"].split()) == 2


async def test_beside_an_app_and_in_two_processes(
    database: str, connection: Connection, receiver: Receiver, folder: Path
) -> None:
    await connection.execute("select messages.create_queue('hooks')")
    url = receiver.url.replace("//", "//me:s3cr3t@")
    args = ["own:app", "--http", f"hooks={url}", "--processes", "2", "--http-listen"]
    args += ["127.0.0.1:0", "--http-callback", "https://shop.example"]
    with Running(database, "worker", *args, env=SECRET, cwd=folder) as worker:
        worker.logged(" has started")
        worker.logged(" has started")
        ids = [
            await connection.fetchval("select messages.publish($1, '1')", queue)
            for queue in ("hooks", "own")
        ]
        assert [await result(connection, id_) for id_ in ids] == [None, 2]
        ended = worker.stop(signal.SIGTERM)
    assert ended.code == 0
    warned = "can read the password in --http, in the list of processes: use NOTIFYQ_HTTP\n"
    assert ended.err.count(warned) == 1
    assert "s3cr3t" not in ended.err


async def test_a_request_of_a_killed_worker_comes_again_under_its_id(
    database: str, connection: Connection, receiver: Receiver, folder: Path
) -> None:
    await connection.execute(
        "select messages.create_queue('hooks', max_attempts => 2, lock_duration => '1 s', "
        "backoff => '0')"
    )
    args = ["--http", f"hooks={receiver.url}"]
    receiver.answer = receiver.hold
    with Running(database, "worker", *args, env=SECRET, cwd=folder) as worker:
        worker.logged(" has started")
        id_ = await connection.fetchval("select messages.publish('hooks', '1')")
        await receiver.received()
        worker.stop(signal.SIGKILL)
    receiver.answer = lambda _: Answer(200, b"8")
    with Running(database, "worker", *args, env=SECRET, cwd=folder) as worker:
        assert await result(connection, id_) == 8
        worker.stop(signal.SIGTERM)
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [it.headers["notifyq-attempt"] for it in receiver.requests] == ["1", "2"]


URL = "https://me:s3cr3t@shop.example"
CALLBACK = ("--http-callback", "https://shop.example")


@pytest.mark.parametrize(
    ("code", "args", "why"),
    [
        (2, (), "give MODULE:APP, or --http QUEUE=URL"),
        (2, ("own:app", *CALLBACK), "are options of --http"),
        (2, ("--http", "hooks"), "--http 'hooks' is not QUEUE=URL"),
        (2, ("--http", "hooks="), "--http 'hooks=' is not QUEUE=URL"),
        (2, ("--http", "hooks=http://a", "--http", "hooks=http://b"), "--http has 'hooks' twice"),
        (2, ("--http", "hooks=http://a", "--http-listen", "127.0.0.1:1"), "needs --http-callback"),
        (2, ("--http", "hooks=http://a", "--http-listen", "1", *CALLBACK), "is not HOST:PORT"),
        (2, ("--http", "hooks=http://a", "--http-timeout", "x"), "'x' is not a duration"),
        (1, ("--http", "hooks=ftp://a"), "the URL of queue 'hooks' must be like https://"),
        (1, ("--http", "hooks=https://"), "the URL of queue 'hooks' must be like https://"),
        (1, ("own:app", "--http", "own=http://a"), "--http own: the app handles this queue itself"),
        (1, ("--http", "hooks=http://a", "-q", "own"), "no handler for queue 'own'"),
        (1, ("--http", "hooks=http://a", "--http-secret-file", "no"), "--http-secret-file no"),
        (1, ("--http", "hooks=http://a", "--http-callback", "x"), "callback must be like https://"),
        (
            1,
            ("--http", "hooks=http://a", "--http-listen", "192.0.2.1:1", *CALLBACK),
            "--http-listen: cannot assign requested address",
        ),
    ],
)
def test_wrong_options(
    notifyq: Notifyq, folder: Path, code: int, args: tuple[str, ...], why: str
) -> None:
    refused = notifyq.refused(
        "worker", *args, "--log-level", "error", code=code, folder=folder, env=SECRET
    )
    assert why in refused


def test_an_address_that_is_taken(notifyq: Notifyq, receiver: Receiver) -> None:
    listen = ("--http-listen", urlsplit(receiver.url).netloc, "--log-level", "error")
    args = ("--http", "hooks=https://shop.example", *CALLBACK, *listen)
    line = notifyq.refused("worker", *args, env=SECRET)
    assert "--http-listen: address already in use" in line


def test_a_queue_that_does_not_exist(notifyq: Notifyq, folder: Path) -> None:
    notifyq.good("queues", "create", "hooks")
    args = ("--http", "hoks=https://shop.example", "--log-level", "error")
    line = notifyq.refused("worker", *args, folder=folder, env=SECRET)
    assert "there is no queue 'hoks': did you mean 'hooks'? `notifyq queues create hoks" in line


def test_messages_of_an_unlogged_queue_cannot_wait_for_a_callback(notifyq: Notifyq) -> None:
    notifyq.good("queues", "create", "unlogged", "--unlogged")
    args = ("--http", "unlogged=https://shop.example", *CALLBACK, "--log-level", "error")
    line = notifyq.refused("worker", *args, env=SECRET)
    assert "--http-callback: messages of 'unlogged', an unlogged queue, cannot wait for it" in line


def test_a_secret_is_needed_and_only_its_owner_may_read_it(notifyq: Notifyq, folder: Path) -> None:
    args = ("--http", "hooks=https://shop.example")
    line = notifyq.refused("worker", *args, folder=folder)
    assert "set NOTIFYQ_HTTP_SECRET, or give --http-secret-file" in line
    for variable in ("NOTIFYQ_HTTP", "NOTIFYQ_HTTP_SECRET"):
        line = notifyq.refused(
            "worker", *args[2 * (variable == "NOTIFYQ_HTTP") :], folder=folder, env={variable: " "}
        )
        assert f"{variable} is set, but empty" in line
    file = folder / "secret"
    file.write_text("secret")
    file.chmod(0o644)
    line = notifyq.refused("worker", *args, "--http-secret-file", str(file), folder=folder)
    assert re.search(r"--http-secret-file /.*/secret may be read by others: `chmod 600` it", line)
    file.write_text("\n")
    file.chmod(0o600)
    line = notifyq.refused("worker", *args, "--http-secret-file", str(file), folder=folder)
    assert re.search(r"--http-secret-file /.*/secret is empty", line)


def test_httpx_is_missing(database: str, folder: Path) -> None:
    (folder / "httpx.py").write_text("raise ImportError('no httpx')")
    args = ["--http", "hooks=https://shop.example"]
    with Running(database, "worker", *args, env=SECRET, cwd=folder) as worker:
        ended = worker.end()
    why = "notifyq: delivery by HTTP needs httpx: pip install 'notifyq[http]'\n"
    assert (ended.code, ended.err) == (1, why)
