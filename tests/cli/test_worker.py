"""`notifyq worker`: how an app is found, how a worker logs, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from cli.programs import NOTIFYQ, Notifyq, Running, environment
from notifyq import App
from notifyq.chaos.proxy import Proxy
from notifyq.cli.logs import configure_logging
from notifyq.cli.worker import summing_up
from support.database import session, until
from support.running import working

MODULES = {
    "raises": "raise RuntimeError('first line\\nsecond line')",
    "exits": "import sys; sys.exit(5)",
    "needs": "import no_such_dependency",
    "broken": "def (",
    "policy": "import notifyq\npolicy = notifyq.Policy(backoff='1s')",
    "number": "app = 3",
    "empty": "import notifyq; app = notifyq.App()",
    "elsewhere": "import notifyq; app = notifyq.App('postgresql://127.0.0.1:1/nowhere')\n"
    "@app.handler('elsewhere')\ndef handle(n: int) -> None: ...",
    "good": "import notifyq\napp = notifyq.App()\n"
    "@app.handler('good')\nasync def handle(n: int) -> int:\n"
    "    if n < 0: raise notifyq.Reject('less than\\nnothing')\n"
    "    return n + 1",
    "slow": "import asyncio, logging, notifyq\napp = notifyq.App()\n"
    "@app.handler('slow')\nasync def handle(n: int) -> None:\n"
    "    logging.getLogger('notifyq').info('it is handled')\n"
    "    await asyncio.sleep(3600)",
    "forks": "import multiprocessing, signal, notifyq\napp = notifyq.App()\n"
    "@app.handler('forks')\ndef handle(name: str) -> int:\n"
    "    child = multiprocessing.get_context('fork').Process(target=signal.pause)\n"
    "    child.start()\n"
    "    __import__('os').kill(child.pid, signal.Signals[name])\n"
    "    child.join(20)\n"
    "    return child.exitcode",
}
TARGETS = [
    ("no_such_module:app", "there is no module 'no_such_module' in"),
    ("good.sub:app", "there is no module 'good.sub' in"),
    ("raises:app", "cannot be imported: RuntimeError: first line second line"),
    ("exits:app", "cannot be imported: SystemExit: 5"),
    ("needs:app", "cannot be imported: No module named 'no_such_dependency'"),
    ("broken:app", "cannot be imported: SyntaxError: "),
    ("policy:app", "not '1s' ({folder}/policy.py, line 2)"),
    ("number:app", "'number' has no App named 'app': it is of type int"),
    ("good:ap", "'good' has no App named 'ap': did you mean 'app'?"),
    ("number:other", "'number' has no App named 'other'"),
    ("empty:app", "there is no handler: register one with @app.handler('queue')"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text + "\n")
    return tmp_path


@pytest.mark.parametrize(("target", "why"), TARGETS, ids=[target for target, _ in TARGETS])
def test_an_app_that_cannot_be_loaded(
    notifyq: Notifyq, folder: Path, target: str, why: str
) -> None:
    why = why.replace("{folder}", str(folder))
    assert why in notifyq.refused("worker", target, folder=folder)


def test_wrong_settings_are_refused(notifyq: Notifyq, folder: Path) -> None:
    def refused(*args: str, **env: str) -> str:
        return notifyq.refused("worker", "good:app", *args, folder=folder, env=env)

    assert "no handler for queue 'other': there are handlers for good" in refused("-q", "other")
    assert "no handler for queue 'other': there" in refused("--queues", "good:3,other:1")
    assert "no handler for queue 'other': there" in refused("--queues", "other,good", "--strict")
    assert "setting poll" in refused("--poll", "0s")
    assert "setting concurrency" in refused(NOTIFYQ_CONCURRENCY="many")
    assert "setting grace" in refused(NOTIFYQ_GRACE="long")
    nowhere = refused("--dsn", "postgresql://127.0.0.1:1/nowhere", NOTIFYQ_RETRY_FOR="0")
    assert "is the server running?" in nowhere


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_worker_handles_and_stops(database: str, folder: Path, number: int) -> None:
    with Running(database, "worker", "good:app", cwd=folder) as worker:
        worker.logged(" has started")
        async with session(database) as connection:
            id_ = await connection.fetchval("select messages.publish('good', '1')")

            async def archived() -> bool:
                row = await connection.fetchrow("select * from messages.archive_find($1)", id_)
                return row is not None and (row["status"], row["result"]) == ("success", 2)

            await until(archived, "the message is archived")
        result = worker.stop(number)
    assert (result.code, result.out) == (0, "")
    lines = result.err.splitlines()
    assert all(line.split(" ")[2] == "INFO" for line in lines)
    expected = ("listening, in session", "has started", "is stopping", "has stopped")
    for line, words in zip(lines, expected, strict=True):
        assert words in line
    assert "; queues: good; streams: none" in lines[1]
    assert lines[-1].endswith(" has stopped: 1 handled, 0 released")


async def test_a_signal_ends_a_forked_child_and_not_its_worker(database: str, folder: Path) -> None:
    with Running(database, "worker", "forks:app", cwd=folder) as worker:
        worker.logged(" has started")
        async with session(database) as connection:
            ends = "select result from messages.message_archive order by id"
            for name in ("SIGTERM", "SIGINT"):
                await connection.execute("select messages.publish('forks', $1)", name)

            async def children_have_ended() -> bool:
                return [row["result"] for row in await connection.fetch(ends)] == [-15, -2]

            await until(children_have_ended, "the children have ended", 30)
        ended = worker.stop(signal.SIGTERM)
    assert ended.code == 0
    assert ended.err.count(" is stopping") == 1
    assert " is stopping" in ended.err.splitlines()[-2]


@pytest.mark.parametrize(
    ("queue", "seen", "grace", "signals"),
    [
        ("good", "attempt 1 at message 1 ended", "1s", 1),
        ("slow", "it is handled", "1s", 1),
        ("slow", "it is handled", "1h", 2),
    ],
)
async def test_a_worker_ends_although_its_network_answers_no_more(
    database: str, folder: Path, queue: str, seen: str, grace: str, signals: int
) -> None:
    (folder / "hasty.py").write_text(
        f"from {queue} import app\nfrom notifyq.cli import signals\n"
        "signals._AFTER_GRACE = signals._AT_ONCE = 0.5\n"
    )
    options = ["--grace", grace, "--log-level", "debug"]
    async with Proxy(database) as proxy:
        with Running(proxy.dsn, "worker", "hasty:app", *options, cwd=folder) as worker:
            await asyncio.to_thread(worker.logged, " has started")
            async with session(database) as connection:
                await connection.execute("select messages.publish($1, '1')", queue)
            await asyncio.to_thread(worker.logged, seen)
            if signals == 2:
                worker.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(worker.logged, " is stopping")
            # From here on the event loop of the proxy stands still: it passes on nothing.
            ended = worker.stop(signal.SIGTERM)
    assert ended.code == 1
    assert "What is left is abandoned" in ended.err


async def test_options_precede_the_environment_and_the_app(database: str, folder: Path) -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    with Running(nowhere, "worker", "elsewhere:app", "--dsn", database, cwd=folder) as worker:
        worker.logged(" has started")
        assert worker.stop(signal.SIGTERM).code == 0
    at_once = {"NOTIFYQ_RETRY_FOR": "0"}
    with Running(database, "worker", "elsewhere:app", cwd=folder, env=at_once) as worker:
        assert worker.end().code == 1


async def test_each_message_is_logged_where_that_is_wanted(database: str, folder: Path) -> None:
    with Running(database, "worker", "good:app", "-v", "--log-format", "logfmt", cwd=folder) as run:
        run.logged("event=WorkerStarted")
        async with session(database) as connection:
            await connection.execute("select messages.publish('good', '1')")
        line = run.logged("event=MessageFinished")
        assert run.stop(signal.SIGTERM).code == 0
    assert " level=info " in line
    assert " queue=good message_id=1 " in line
    assert " status=success " in line


async def test_a_summary_is_logged_when_there_was_something(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("notifyq.cli.worker._SUMMARY_EVERY", 0.05)
    caplog.set_level(logging.INFO, "notifyq.worker")

    @app.handler("q")
    async def handle(_: int) -> None: ...

    @app.subscriber("s", "reader")
    async def read(_: int) -> None: ...

    await app.create()
    async with working(app) as worker:
        with summing_up(worker):
            await app.publish("q", 1)
            await app.publish("s", 1)
            await until(
                lambda: (
                    {"1 events", "1 success"}
                    <= {
                        part
                        for line in caplog.messages
                        for part in line.split(": ")[-1].split(", ")
                    }
                ),
                "the summary has both",
                30,
            )
    summaries = [line for line in caplog.messages if line.startswith("in the last ")]
    assert len(summaries) in {1, 2}


async def test_a_json_log_has_one_object_a_line(database: str, folder: Path) -> None:
    options = ["--log-format", "json", "--log-level", "debug", "--poll", "50ms", "-c", "2"]
    with Running(database, "worker", "good:app", *options, cwd=folder) as worker:
        worker.logged(" has started")
        async with session(database) as connection:
            await connection.execute("select messages.publish('good', '-1')")
        worker.logged("MessageFinished")
        result = worker.stop(signal.SIGTERM)
    assert result.code == 0
    rows = [json.loads(line) for line in result.err.splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, rows))
    assert all(datetime.fromisoformat(row["time"]).tzinfo for row in rows)
    (finished,) = [row for row in rows if row.get("event") == "MessageFinished"]
    assert re.fullmatch(
        r"queue 'good': attempt 1 at message 1 ended after \d+\.\d{3} s: rejected",
        finished["message"],
    )
    assert (finished["level"], finished["queue"]) == ("debug", "good")
    assert (finished["status"], finished["details"]) == ("rejected", "less than\nnothing")


def test_event_is_one_readable_line(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logging("info", "logfmt")
        event = {"queues": ("a", "b c"), "wait": 1.23456, "none": None, "text": 'x\n"y"', "n": 3}
        logging.getLogger("notifyq").info("Something", extra={"event": event})
        logging.getLogger("notifyq").debug("Nothing")
    finally:
        root.handlers, root.level = before
        logging.getLogger("asyncpg").setLevel(logging.NOTSET)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        ' level=info logger=notifyq message=Something queues=a,"b c" wait=1.235 '
        'text="x\\n\\"y\\"" n=3'
    )


def test_a_removed_folder_is_no_traceback(notifyq: Notifyq, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["bash", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', gone, *NOTIFYQ, "worker", "good:app"],
        env=environment(NOTIFYQ_DSN=notifyq.dsn or ""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "notifyq: No such file or directory\n"
