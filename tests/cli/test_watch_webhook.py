"""`notifyq dead watch --webhook`: each dead message once, signed, and again until it is taken."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.programs import Notifyq, Running
from integrations.receiver import Answer, Receiver, receiving
from integrations.test_http import signatures
from support.database import Connection, let_fail, until

SECRET = {"NOTIFYQ_DEAD_WEBHOOK_SECRET": "new old"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def watch(database: str, *args: str | Path, **env: str) -> Running:
    running = Running(database, "dead", "watch", *args, env=SECRET | env)
    running.logged("listening, in session")
    return running


async def test_each_dead_message_is_posted_once_and_signed(
    database: str, connection: Connection, receiver: Receiver, tmp_path: Path
) -> None:
    options = ["--webhook", f"{receiver.url}/alert", "--state", str(tmp_path / "state")]
    with watch(database, *options) as watching:
        first = await let_fail(connection, 2, details="no\ngood")
        await receiver.received(2)
        assert watching.stop(signal.SIGTERM)[:2] == (0, "")
    second = await let_fail(connection)
    with watch(database, *options) as watching:
        await receiver.received(3)
        assert watching.stop(signal.SIGTERM).code == 0
    bodies = [json.loads(request.body) for request in receiver.requests]
    assert [body["id"] for body in bodies] == [*first, *second]
    assert (bodies[0]["status"], bodies[0]["details"]) == ("failed", "no\ngood")
    names = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(set(names)) == 3
    assert names[0].startswith(f"dead_{first[0]}_")
    for request in receiver.requests:
        assert request.path == "/alert"
        assert request.headers["webhook-signature"].split() == signatures(request, b"new", b"old")


async def test_one_that_is_not_taken_comes_again_before_the_next(
    database: str, connection: Connection, receiver: Receiver
) -> None:
    receiver.in_turn(Answer(500, b"no\nspace"), Answer())
    with watch(database, NOTIFYQ_DEAD_WEBHOOK=receiver.url) as watching:
        dead = await let_fail(connection, 2)
        line = watching.logged("did not take dead message")
        assert f"dead message {dead[0]}, which is posted again in " in line
        assert line.endswith("500 Internal Server Error: no space\n")
        await receiver.received(3)
        assert watching.stop(signal.SIGTERM).code == 0
    assert [json.loads(it.body)["id"] for it in receiver.requests] == [dead[0], *dead]
    assert len({it.headers["webhook-id"] for it in receiver.requests}) == 2


async def test_a_stop_ends_the_wait_for_the_next_try_and_keeps_the_message(
    database: str, connection: Connection, receiver: Receiver, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    receiver.answer = lambda _: Answer(503, headers={"retry-after": "3600"})
    with watch(database, "--webhook", receiver.url, "--state", state) as watching:
        dead = await let_fail(connection)
        watching.logged("posted again in 3600.0 s")
        assert watching.stop(signal.SIGTERM).code == 0
    receiver.answer = lambda _: Answer()
    with watch(database, "--webhook", receiver.url, "--state", state) as watching:
        await receiver.received(2)
        assert watching.stop(signal.SIGTERM).code == 0
    assert [json.loads(it.body)["id"] for it in receiver.requests] == dead * 2


async def test_a_running_request_is_not_interrupted(
    database: str, connection: Connection, receiver: Receiver, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    receiver.answer = receiver.hold
    with watch(database, "--webhook", receiver.url, "--state", state) as watching:
        (dead,) = await let_fail(connection)
        await receiver.received()
        watching.process.send_signal(signal.SIGTERM)
        receiver.released.set()
        assert watching.end().code == 0
    (later,) = await let_fail(connection)
    with watch(database, "--webhook", receiver.url, "--state", state) as watching:
        await receiver.received(2)
        assert watching.stop(signal.SIGTERM).code == 0
    assert [json.loads(it.body)["id"] for it in receiver.requests] == [dead, later]


async def test_gone_ends_the_watch(
    database: str, connection: Connection, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Answer(410)
    with watch(database, "--webhook", receiver.url) as watching:
        (dead,) = await let_fail(connection)
        result = watching.end()
    assert result.code == 1
    last = result.err.splitlines()[-1]
    assert last.startswith(f"notifyq: the webhook did not take dead message {dead}: 410 Gone; ")


@pytest.mark.parametrize("sink", ["webhook", "exec", "print"])
async def test_masks_hide_parts_of_what_is_handed_out(
    database: str, connection: Connection, receiver: Receiver, tmp_path: Path, sink: str
) -> None:
    got = tmp_path / "got"
    options = {
        "webhook": ["--webhook", receiver.url],
        "exec": ["--exec", f"cat > {got}.new; mv {got}.new {got}"],
        "print": ["--json"],
    }[sink]
    with watch(database, *options, "--mask", "card") as watching:
        await connection.execute(
            'select messages.publish(\'default\', \'{"card": "4711-12", "n": 1.50}\', '
            'headers => \'{"card": "x"}\')'
        )
        (claimed,) = await connection.fetch("select * from messages.claim(array['default'])")
        await connection.fetchval(
            "select messages.finish($1, $2, 'failed', 'no card 4711-12')",
            claimed["id"], claimed["lock_token"],
        )  # fmt: skip
        if sink == "webhook":
            text = (await receiver.received())[0].body.decode()
        elif sink == "exec":
            await until(got.exists, "the command has run")
            text = got.read_text()
        else:
            text = watching.line()
        assert watching.stop(signal.SIGTERM).code == 0
    assert '"message":{"n": 1.50, "card": "•••"}' in text
    assert '"headers":{"card":"•••"}' in text
    assert "4711" not in text


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["--webhook", "http://x", "--exec", "true"], 2, "--exec and --webhook exclude each other"),
        (["--webhook-secret-file", "x"], 2, "is an option of --webhook URL"),
        (["--webhook", "http://x"], 1, "--webhook needs a secret that signs the requests: set NOT"),
    ],
)
def test_what_is_refused(notifyq: Notifyq, args: list[str], code: int, why: str) -> None:
    assert why in notifyq.refused("dead", "watch", *args, code=code)


def test_a_url_that_is_none(notifyq: Notifyq) -> None:
    line = notifyq.refused("dead", "watch", "--webhook", "ftp://x", env=SECRET)
    assert "the URL of the webhook must be like https://shop.example/path" in line
