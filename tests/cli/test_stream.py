"""`notifyq stream`: from created to dropped, for people and for programs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from cli.programs import Notifyq, Running, Terminal
from support.database import Connection, until


def test_a_stream_from_create_to_drop(notifyq: Notifyq) -> None:
    run = notifyq.good
    assert run("stream", "ls").out == "no streams\n"
    assert run("stream", "lag").out == "no subscribers\n"
    create = ["stream", "create", "s [b]", "--retention", "1d", "--max-lag", "7d"]
    create += ["--max-events", "1000", "--max-bytes", "5000", "--notify", "always"]
    assert run(*create).out == "created s [b]\n"
    assert run(*create).out == "s [b] exists already, nothing changed\n"
    assert run("stream", "alter", "s [b]", "--notify", "auto").out == "altered s [b]\n"
    (row,) = run("stream", "ls", "--json").data
    given = {"stream": "s [b]", "retention": 86400, "max_lag": 7 * 86400, "max_events": 1000}
    assert {name: row[name] for name in given} == given
    assert run("stream", "subscribe", "s [b]", "a").out == "subscribed a to s [b]\n"
    assert "its position is unchanged" in run("stream", "subscribe", "s [b]", "a", "start").out
    number = int(run("publish", "s [b]", '{"n": 1}', "--key", "k", "--type", "t").out)
    assert int(run("stream", "tick", "s [b]").out) > 0
    (lag,) = run("stream", "lag", "s [b]", "--json").data
    assert (lag["subscriber"], lag["pending"] >= 1, lag["dead"]) == ("a", True, 0)
    assert " a " in run("stream", "lag").out
    assert run("stream", "seek", "s [b]", "a", "now").out == "a goes on from now\n"
    assert run("stream", "lag", "--json").data[0]["pending"] == 0
    assert run("stream", "pause", "s [b]").out == "paused s [b]\n"
    assert run("stream", "pause", "s [b]").out == "s [b] was paused already\n"
    assert "paused" in notifyq.refused("publish", "s [b]", "1")
    assert run("stream", "resume", "s [b]").out == "resumed s [b]\n"
    assert run("stream", "unsubscribe", "s [b]", "a").out == "unsubscribed a from s [b]\n"
    assert "'a' does not subscribe to stream 's [b]'" in notifyq.refused(
        "stream", "unsubscribe", "s [b]", "a"
    )
    assert run("stream", "drop", "s [b]", "--force").out.startswith("dropped s [b]")
    assert number > 0
    for command in (["seek", "no", "a", "now"], ["tail", "no"], ["drop", "no"], ["tick", "no"]):
        assert "no" in notifyq.refused("stream", *command)


def test_a_stream_gets_bounds_and_a_schema_and_loses_them(notifyq: Notifyq) -> None:
    def bounds() -> list[object]:
        (row,) = [row for row in notifyq.good("stream", "--json").data if row["stream"] == "bounds"]
        return [row["max_lag"], row["max_events"], row["payload_schema"]]

    schema = '{"type": "object"}'
    none = ("--max-lag", "none", "--max-events", "none", "--payload-schema", "none")
    notifyq.good("stream", "create", "bounds", *none)
    assert bounds() == [None, None, None]
    given = ("--max-lag", "1d", "--max-events", "5", "--payload-schema", schema)
    notifyq.good("stream", "alter", "bounds", *given)
    assert bounds() == [86400, 5, schema]
    notifyq.good("stream", "alter", "bounds", *none)
    assert bounds() == [None, None, None]


def test_wrong_options_of_a_stream_are_refused(notifyq: Notifyq, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text("{")
    create = ["stream", "create", "odd"]
    for text in (str(schema), f"@{schema}"):
        assert "schema.json is not JSON" in notifyq.refused(
            *create, "--payload-schema", text, code=2
        )
    assert "is not one of 'auto', 'always', 'off'" in notifyq.refused(
        *create, "--notify", "loud", code=2
    )


async def test_tail_prints_events_until_a_signal(database: str, connection: Connection) -> None:
    await connection.fetchval("select messages.create_stream('s')")

    async def is_tailing() -> bool:
        # It takes its first position before it listens.
        found: int = await connection.fetchval(
            "select count(*) from pg_stat_activity "
            "where application_name = 'notifyq stream tail' and datname = current_database()"
        )
        return found > 0

    await connection.fetchval("select messages.publish('s', '0')")
    with Running(database, "stream", "tail", "s", "--json", "-n", "2") as tailing:
        await until(is_tailing, "it listens", 20)
        await connection.fetchval(
            "select messages.publish('s', '{\"n\": 1.50}', key => 'k', type => 't')"
        )
        line = tailing.line()
        event = json.loads(line)
        assert (event["stream"], event["key"], event["type"]) == ("s", "k", "t")
        assert '"message":{"n": 1.50}' in line
        await connection.fetchval("select messages.publish('s', '[]')")
        assert json.loads(tailing.line())["message"] == []
        assert tailing.process.wait(20) == 0
    for args, what in (
        (("stream", "tail", "s"), "new events of s"),
        (("dead", "watch"), "dead messages"),
    ):
        with Terminal(database, *args) as terminal:
            terminal.show(f"waiting for {what}; Ctrl-C ends it")
            terminal.type("\x03")
            assert terminal.end() == 0
    with Running(database, "stream", "tail", "s") as tailing:
        await until(is_tailing, "it listens", 20)
        await connection.fetchval("select messages.publish('s', '\"text\"', key => 'k')")
        assert tailing.line().endswith(' key=k "text"\n')
        tailing.process.send_signal(signal.SIGINT)
        assert tailing.process.wait(20) == 0
    assert await connection.fetch("select from messages.subscription_info()") == []
