"""The output of `queues`, `ls`, `show`, `cancel` and `dead`, for people and for programs."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.programs import NOTIFYQ, Notifyq, Terminal, environment
from notifyq.operations.monitor import login
from support.database import let_fail, session

EVIL = "[bold]x[/] [/nope] :dog: \\[ \x1b[31m\u009b \u202e\ttab"


async def archive(dsn: str, queue: str, quantity: int, *, details: str = "no good") -> list[int]:
    """Let messages die and return their ids, the oldest first."""
    async with session(dsn) as connection:
        return await let_fail(connection, quantity, queue, details, status="rejected")


async def test_dead_messages_are_grouped_and_a_group_is_retried_and_deleted(
    notifyq: Notifyq, shared_database: str, queue: str
) -> None:
    run = notifyq.good
    of_queue = ["--queue", queue]
    assert run("dead", "groups", *of_queue).out == "no dead messages\n"
    ids = await archive(shared_database, queue, 3, details="Timeout after 5 s")
    await archive(shared_database, queue, 2, details=f"other {EVIL}")
    first, second = run("dead", "groups", *of_queue, "--json").data
    assert (first["fingerprint"], first["dead"]) == ("Timeout after <n> s", 3)
    assert (first["last_id"], first["queues"]) == (ids[-1], [queue])
    shown = run("dead", "groups", *of_queue, "--limit", "1").out
    assert "Timeout after <n> s" in shown
    assert "\x1b" not in run("dead", "groups", *of_queue).out
    group = [*of_queue, "--fingerprint", first["fingerprint"]]
    earlier = run("dead", "retry", *group, "--limit", "2").out
    later = run("dead", "retry", *group).out
    again = sorted(row["id"] for row in run("ls", "-q", queue, "--json").data)
    assert earlier == f"2 published again as {again[0]}, {again[1]}\n"
    assert later == f"1 published again as {again[2]}\n"
    assert "all were retried before" in notifyq.refused("dead", "retry", *group)
    other = ["--fingerprint", second["fingerprint"]]
    assert "there is no queue 'none'" in notifyq.refused(
        "dead", "delete", "--queue", "none", *other
    )
    assert run("dead", "delete", *of_queue, *other).out == "2 deleted\n"
    assert run("dead", "groups", *of_queue, "--json").out == ""


def publish(notifyq: Notifyq, queue: str, message: object, *options: str) -> int:
    return int(notifyq.good("publish", queue, json.dumps(message), *options).out)


def test_a_queue_from_create_to_drop(notifyq: Notifyq) -> None:
    name = "it's [bold]a[/] queue"
    run = notifyq.good
    policy = ["--lock-duration", "1m30s", "--max-attempts", "5", "--backoff", "250ms"]
    policy += ["--backoff-max", "1h", "--notify", "off", "--retention", "7d", "--max-bytes", "5000"]
    assert run("queues", "create", name, *policy).out == f"created {name}\n"
    assert run("queues", "create", name).out == f"{name} exists, nothing changed\n"
    row = next(row for row in run("queues", "--json").data if row["queue"] == name)
    counts = {"waiting": 0, "scheduled": 0, "locked": 0, "expired": 0, "oldest_waiting_at": None}
    times = {"lock_duration": 90, "backoff": 0.25, "backoff_max": 3600, "retention": 604800}
    rest = {"queue": name, "max_attempts": 5, "paused": False, "notify": "off", "max_bytes": 5000}
    assert row == row | counts | times | rest
    assert run("queues", "show", name, "--json").data == [row]
    _head, *lines = run("queues", "show", name).out.splitlines()
    shown = dict(line.rstrip().split(maxsplit=1) for line in lines)
    assert (shown["backoff"], shown["fair"], shown["rate"]) == ("250 ms", "no", "no limit")
    assert run("queues", "alter", name, "--max-attempts", "2").out == f"changed {name}\n"
    assert run("queues", "pause", name).out == f"paused {name}\n"
    assert run("queues", "pause", name).out == f"{name} was paused already\n"
    assert any(line.startswith(name) and " yes" in line for line in run("queues").out.splitlines())
    until = run("queues", "pause", name, "--until", "2999-01-31T12:00").out
    assert until == f"paused {name} until 2999-01-31 12:00\n"
    assert "2999-01-31" in run("queues", "ls").out
    assert run("queues", "pause", name, "--for", "1h").out == f"paused {name} for 60 min\n"
    assert run("queues", "resume", name).out == f"resumed {name}\n"
    assert run("queues", "resume", name).out == f"{name} was not paused\n"
    publish(notifyq, name, 1)
    assert "force" in notifyq.refused("queues", "drop", name)
    assert run("queues", "drop", name, "--force").out == f"dropped {name} and 1 live messages\n"
    assert "there is no queue" in notifyq.refused("queues", "drop", name)


@pytest.mark.parametrize("name", ["", " ", "a:b", "x\ty", "x" * 201, "é" * 101])
def test_name_that_no_queue_can_have(notifyq: Notifyq, name: str) -> None:
    assert "cannot be the name of a queue" in notifyq.refused("queues", "create", name)


@pytest.mark.parametrize("command", ["show", "alter", "pause", "resume", "drop"])
def test_queue_that_is_not_there(notifyq: Notifyq, command: str) -> None:
    line = notifyq.refused("queues", command, "nosuch")
    assert "there is no queue 'nosuch': create it with `notifyq queues create nosuch`" in line


def test_policy_that_contradicts_itself(notifyq: Notifyq) -> None:
    line = notifyq.refused("queues", "create", "q", "--backoff", "5m", "--backoff-max", "1s")
    assert "nor longer than backoff_max" in line
    assert "longer than zero" in notifyq.refused("queues", "create", "q", "--lock-duration", "0s")


def test_messages_are_listed_by_state(notifyq: Notifyq, queue: str) -> None:
    waiting = publish(notifyq, queue, {"a": 1})
    scheduled = publish(notifyq, queue, {"b": 2}, "--delay", "1h")

    def ids(*args: str) -> list[int]:
        return [row["id"] for row in notifyq.good("ls", "-q", queue, "--json", *args).data]

    assert ids() == [waiting, scheduled]
    assert ids("--state", "waiting") == [waiting]
    assert ids("--state", "scheduled") == [scheduled]
    assert ids("--state", "locked") == []
    assert ids("-n", "1") == [waiting]
    table = notifyq.good("ls", "-q", queue).out.splitlines()
    assert [line.split()[:3] for line in table] == [
        ["id", "queue", "state"],
        [str(waiting), queue, "waiting"],
        [str(scheduled), queue, "scheduled"],
    ]
    assert notifyq.good("cancel", waiting).out == f"cancelled {waiting}\n"
    assert ids("--finished") == ids("--status", "rejected") == [waiting]
    assert ids("--status", "success") == []


def test_cancel_names_messages_that_it_cannot_cancel(notifyq: Notifyq, queue: str) -> None:
    id_ = publish(notifyq, queue, 1)
    result = notifyq("cancel", id_, id_, "9000000000000000000")
    assert result.code == 1
    assert result.out == f"cancelled {id_}\n"
    assert result.err == (
        "notifyq: there is no message 9000000000000000000, neither live nor archived\n"
    )
    assert notifyq("cancel", id_).err == f"notifyq: {id_} is finished: rejected\n"
    assert notifyq("amend", id_, "1").err == f"notifyq: {id_} is finished: rejected\n"
    assert notifyq("unblock", id_).err == f"notifyq: {id_} is finished: rejected\n"


async def test_a_running_message_is_cancelled_on_demand(
    notifyq: Notifyq, queue: str, shared_database: str
) -> None:
    id_ = publish(notifyq, queue, 1)
    async with session(shared_database) as connection:
        await connection.execute("select id from messages.claim_id($1, worker => 'w')", id_)
    refused = notifyq("cancel", id_)
    assert (refused.code, refused.err) == (1, f"notifyq: {id_} is being handled by w\n")
    assert notifyq.good("cancel", id_, "--running", "--children").out == f"cancelled {id_}\n"
    refused = notifyq("cancel", "--running", id_)
    assert (refused.code, refused.err) == (
        1,
        f"notifyq: {id_} is finished: rejected\n",
    )


def test_a_message_is_amended(notifyq: Notifyq, queue: str) -> None:
    id_ = publish(notifyq, queue, 1)
    given = ('{"n": 2}', "--priority", "0", "--header", "trace=t1")
    assert notifyq.good("amend", id_, *given).out == f"changed {id_}\n"
    [shown] = notifyq.good("show", id_, "--json").data
    assert (shown["message"], shown["priority"], shown["headers"]) == ({"n": 2}, 0, {"trace": "t1"})
    notifyq.good("amend", id_, "--at", "2099-01-01T00:00:00+00:00")
    [shown] = notifyq.good("show", id_, "--json").data
    assert shown["state"] == "scheduled"
    assert "give JSON, --priority, --at or --header" in notifyq.refused("amend", id_, code=2)
    assert "the payload is not JSON" in notifyq.refused("amend", id_, "{")
    notifyq.good("cancel", id_)
    refused = notifyq("amend", id_, "--priority", "1")
    assert (refused.code, refused.err) == (1, f"notifyq: {id_} is finished: rejected\n")


async def test_a_message_expires(notifyq: Notifyq, queue: str, shared_database: str) -> None:
    id_ = publish(notifyq, queue, 1, "--expires-in", "1h")
    async with session(shared_database) as connection:
        await connection.execute("update notifyq.expiry set expires_at = now()")
        assert await connection.fetch("select id from messages.claim(array[$1])", queue) == []
    [shown] = notifyq.good("show", id_, "--json").data
    assert shown["details"] == "expired"


def test_what_waits_for_others_is_shown_counted_and_unblocked(notifyq: Notifyq, queue: str) -> None:
    first = publish(notifyq, queue, 1)
    second = publish(notifyq, queue, 2)
    both = ("--after", str(first), "--after", str(second))
    held = publish(notifyq, queue, 3, *both, "--on-failure", "hold")
    last = publish(notifyq, queue, 4, "--after", str(held))
    notifyq.good("cancel", first)

    def blocked() -> int:
        rows = notifyq.good("queues", "--json").data
        return next(int(row["blocked"]) for row in rows if row["queue"] == queue)

    assert blocked() == 2
    assert " blocked " in notifyq.good("queues").out.splitlines()[0]
    *_, line, next_line = notifyq.good("show", held).out.splitlines()
    assert line.startswith(f"after           {first}, rejected in {queue}: ")
    assert next_line == f"                {second}, waiting in {queue}"
    (row,) = notifyq.good("show", held, "--json").data
    assert [(it["id"], it["state"]) for it in row["after"]] == [
        (first, "rejected"),
        (second, "waiting"),
    ]
    result = notifyq("unblock", held, second)
    assert (result.code, result.out) == (1, f"unblocked {held}\n")
    assert result.err == f"notifyq: {second} does not wait for other messages\n"
    assert blocked() == 1
    notifyq.good("cancel", held)
    (row,) = notifyq.good("show", last, "--json").data
    assert row["status"] == "rejected"


def test_message_that_is_not_there(notifyq: Notifyq) -> None:
    for args in (("show", "9000000000000000000"), ("show", "9000000000000000000", "--json")):
        assert "there is no message 9000000000000000000" in notifyq.refused(*args)


async def test_texts_cannot_control_the_terminal(
    notifyq: Notifyq, shared_database: str, queue: str
) -> None:
    (id_,) = await archive(shared_database, queue, 1, details=f"{EVIL}\nsecond line")
    shown = [
        notifyq.good(*args).out
        for args in (("show", id_), ("dead", "ls", "-q", queue), ("ls", "--finished", "-q", queue))
    ]
    for text in shown:
        assert "\x1b" not in text
        assert "\u009b" not in text
        assert "\u202e" not in text
        assert "[bold]x[/] [/nope] :dog: \\[ ?[31m? ??tab" in text
    assert "\n                second line\n" in shown[0]
    (row,) = notifyq.good("show", id_, "--json").data
    assert row["details"] == f"{EVIL}\nsecond line"


def test_times_are_local(notifyq: Notifyq, queue: str) -> None:
    id_ = publish(notifyq, queue, 1, "--at", "2030-06-30T22:30:00+00:00")
    for zone, at in (
        ("UTC", "2030-06-30 22:30"),
        ("Asia/Kolkata", "2030-07-01 04:00"),
        ("America/New_York", "2030-06-30 18:30"),
        ("XYZ-3", "2030-07-01 01:30"),
    ):
        env = {"TZ": zone}
        assert at in notifyq.good("ls", "-q", queue, env=env).out
        assert f"available_at    {at}:00 " in notifyq.good("show", id_, env=env).out
        (row,) = notifyq.good("show", id_, "--json", env=env).data
        assert datetime.fromisoformat(row["available_at"]) == datetime(
            2030, 6, 30, 22, 30, tzinfo=UTC
        )


async def test_a_message_that_never_becomes_due_is_listed(
    notifyq: Notifyq, shared_database: str, queue: str
) -> None:
    async with session(shared_database) as connection:
        await connection.fetchval(
            "select messages.publish($1, '1', available_at => 'infinity')", queue
        )
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        assert "scheduled" in notifyq.good("ls", "-q", queue, env={"TZ": zone}).out
        notifyq.good("ls", "-q", queue, "--json", env={"TZ": zone})


async def test_dead_messages_are_listed_retried_and_deleted(
    notifyq: Notifyq, shared_database: str, queue: str
) -> None:
    ids = await archive(shared_database, queue, 5)

    def dead() -> list[int]:
        return sorted(r["id"] for r in notifyq.good("dead", "ls", "-q", queue, "--json").data)

    assert dead() == ids
    text = notifyq.good("dead", "ls", "-q", queue, "-n", "2").out
    assert text.endswith("3 more: use --limit\n")
    assert "no good" in text
    again = notifyq.good("dead", "retry", ids[0], ids[0]).out
    live = [row["id"] for row in notifyq.good("ls", "-q", queue, "--json").data]
    assert again == f"1 published again as {live[-1]}\n"
    result = notifyq("dead", "retry", ids[0], ids[1], "9000000000000000000", "--json")
    assert result.data == [{"published": 1, "ids": [live[-1] + 1]}]
    assert (result.code, result.err) == (
        1,
        f"notifyq: 2 of 3 are not dead, or were retried before: {ids[0]}, 9000000000000000000\n",
    )
    assert dead() == ids[2:]
    result = notifyq("dead", "delete", ids[2], ids[2], "9000000000000000000")
    left = "1 of 2 are not dead: 9000000000000000000"
    assert result == (1, "1 deleted\n", f"notifyq: {left}\n")
    again = notifyq.good("dead", "retry", "--queue", queue, "-n", "1").out
    assert again == f"1 published again as {live[-1] + 2}\n"
    since = ["--since", "2000-01-01", "--until", "2000-01-02"]
    assert notifyq.good("dead", "retry", "-q", queue, *since).out == "0 published again\n"
    assert dead() == ids[4:]
    assert "there is no queue 'nosuch'" in notifyq.refused("dead", "retry", "-q", "nosuch")
    for act in ("retry", "delete"):
        assert "`notifyq dead groups`" in notifyq.refused("dead", act, "--fingerprint", "no such")
    assert "'success' is not one of" in notifyq("dead", "retry", "--status", "success").err
    assert "there is no queue 'nosuch'" in notifyq.refused("dead", "ls", "-q", "nosuch")


LISTS = [("ls", "--json"), ("dead", "ls")]


@pytest.mark.parametrize("args", LISTS, ids=" ".join)
def test_the_output_may_be_closed(
    notifyq: Notifyq, shared_database: str, queue: str, args: tuple[str, ...]
) -> None:
    notifyq.good("publish", queue, stdin="1\n" * 20)
    command = subprocess.list2cmdline([*NOTIFYQ, *args])
    script = f"""
        {command} | head -1; echo "${{PIPESTATUS[0]}}"
        {command} | true; echo "${{PIPESTATUS[0]}}"
        {command} >&-; echo "$?"
        {command} <&- >/dev/null 2>&-; echo "$?"
        {command} >/dev/full; echo "$?"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment(NOTIFYQ_DSN=shared_database),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[1:] == ["0", "0", "0", "0", "1"]
    assert done.stderr == "notifyq: No space left on device\n"


def test_encoding_that_lacks_a_character_is_no_error(notifyq: Notifyq, queue: str) -> None:
    publish(notifyq, queue, "€")
    env = environment(NOTIFYQ_DSN=notifyq.dsn or "", PYTHONIOENCODING="ascii")
    done = subprocess.run(
        [*NOTIFYQ, "ls", "-q", queue], env=env, capture_output=True, check=True, text=True
    )
    assert '"\\u20ac"' in done.stdout


async def test_lists_fit_a_terminal(notifyq: Notifyq, shared_database: str, queue: str) -> None:
    await archive(shared_database, queue, 2, details="a reason that is a little longer " * 9)
    publish(notifyq, queue, {"text": "long " * 99})
    for args, headers in (
        (("queues",), "queue waiting scheduled locked expired oldest paused"),
        (("ls", "-q", queue), "id queue state attempts available_at message"),
        (("ls", "--finished", "-q", queue), "id queue status archived_at details message"),
        (("dead", "ls", "-q", queue), "id queue status archived_at details"),
    ):
        with Terminal(shared_database, *args) as terminal:
            assert terminal.end() == 0
        lines = plain(terminal.shown)
        assert max(map(len, lines)) <= 80
        assert lines[0].split() == headers.split()


def plain(text: str) -> list[str]:
    """Lines without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "").splitlines()


def test_ping_checks_the_server_and_a_session(notifyq: Notifyq) -> None:
    assert notifyq.good("ping").out == "ok\n"
    assert notifyq.good("ping", "--as", "notifyq").out == "ok\n"
    line = notifyq.refused("ping", "--as", "notifyq worker")
    assert line == "notifyq: the server answers, but no session 'notifyq worker' comes from here\n"


def test_json_of_every_list_is_one_object_a_line(
    notifyq: Notifyq, queue: str, tmp_path: Path
) -> None:
    id_ = publish(notifyq, queue, {"é": [1.5, None, "\n"]}, "--header", "h=[1]")
    notifyq.good("cancel", id_)
    for args in (("queues",), ("ls", "--finished"), ("show", str(id_)), ("dead", "ls")):
        rows: list[Any] = notifyq.good(*args, "--json").data
        assert all(isinstance(row, dict) for row in rows)
    (row,) = notifyq.good("dead", "show", id_, "--json").data
    assert row["message"] == {"é": [1.5, None, "\n"]}
    assert row["headers"] == {"h": [1]}
    assert row["status"] == "rejected"


async def test_json_is_valid_for_a_number_that_is_no_float(
    notifyq: Notifyq, shared_database: str, queue: str
) -> None:
    async with session(shared_database) as connection:
        id_ = await connection.fetchval(
            "select messages.publish($1, '1', headers => $2::text::jsonb)",
            queue,
            f'{{"n": {"9" * 400}.5}}',
        )
    for args in (("ls", "-q", queue), ("show", id_)):
        (row,) = notifyq.good(*args, "--json").data
        assert row["headers"] == {"n": None}


async def test_show_has_each_attempt_that_did_not_succeed(
    notifyq: Notifyq, queue: str, shared_database: str
) -> None:
    notifyq.good("queues", "alter", queue, "--max-attempts", "2")
    id_ = publish(notifyq, queue, 1)
    async with session(shared_database) as connection:
        for text in ("first", "second"):
            await connection.fetch(
                "select messages.retry(c.id, c.lock_token, interval '0', 'why', 'failed', 'E.x', "
                "$2, 'Traceback:' || chr(10) || $2) "
                "from messages.claim(array[$1], worker => 'w[1]') as c",
                queue,
                text,
            )
    shown = notifyq.good("show", id_).out
    before, first, second = shown.split("\nattempt ")
    assert "why" in before
    assert re.match(r"1 +failed at [-\d: +]+, after .+ m?s, by w\[1\], next at [\d:]+\n", first)
    assert first.endswith("\n                Traceback:\n                first\n")
    assert re.match(r"2 +failed at [-\d: +]+, after .+ m?s, by w\[1\], the last one\n", second)
    (row,) = notifyq.good("show", id_, "--json").data
    assert [a["details"] for a in row["history"]] == ["first", "second"]
    assert row["history"][0]["error_type"] == "E.x"
    assert row["attempts"] == 2


async def test_show_has_progress_and_what_a_message_waits_for(
    notifyq: Notifyq, queue: str, shared_database: str
) -> None:
    id_ = publish(notifyq, queue, 1)
    async with session(shared_database) as connection:
        claim = "select id, lock_token from messages.claim(array[$1])"
        [lock] = await connection.fetch(claim, queue)
        report = "select messages.progress($1, $2, 0.25, '[bold]half')"
        await connection.execute(report, *lock)
        wait = "select messages.await_signal($1, $2, 'approval', 'approved:1', '1 day')"
        await connection.execute(wait, *lock)
    shown = notifyq.good("show", id_).out
    assert re.search(r"\nprogress +25 % at [-\d: +]+: \[bold\]half\n", shown)
    waits = r"\nparked +approval: signal approved:1, until [-\d: +]+\n"
    assert re.search(waits, shown)
    [row] = notifyq.good("show", id_, "--json").data
    assert (row["progress"]["fraction"], row["progress"]["note"]) == (0.25, "[bold]half")
    assert [it["waits_for"] for it in row["parked"]] == ["approved:1"]
    notifyq.good("cancel", id_)
    [row] = notifyq.good("show", id_, "--json").data
    assert (row["progress"], row["parked"]) == (None, [])


async def test_a_dead_message_is_retried_from_a_step(
    notifyq: Notifyq, queue: str, shared_database: str
) -> None:
    id_ = publish(notifyq, queue, 1)
    async with session(shared_database) as connection:
        claim = "select id, lock_token from messages.claim(array[$1])"
        [lock] = await connection.fetch(claim, queue)
        for name in ("one", "two", "three"):
            await connection.execute("select messages.step($1, $2, $3)", *lock, name)
        await connection.execute("select messages.finish($1, $2, 'failed')", *lock)
    retry = ("dead", "retry")
    for options in (("--all",), (id_, id_ + 1)):
        refused = notifyq.refused(*retry, *options, "--from", "two", code=2)
        assert "give its id alone" in refused
    assert "has no recorded step 'four'" in notifyq.refused(*retry, id_, "--from", "four")
    [again] = notifyq.good(*retry, id_, "--from", "two", "--json").data[0]["ids"]
    [row] = notifyq.good("show", again, "--json").data
    assert [step["name"] for step in row["steps"]] == ["one"]
    result = notifyq(*retry, id_, "--from", "two")
    assert (result.code, result.out) == (1, "0 published again\n")
    assert "not dead, or were retried before" in result.err
    async with session(shared_database) as connection:
        of_it = "select details ->> 'from' from messages.audit where subject = $1"
        noted = await connection.fetch(of_it, str(id_))
    assert [row[0] for row in noted] == ["two", "two"]


async def test_show_has_the_log_of_each_call(
    notifyq: Notifyq, queue: str, shared_database: str
) -> None:
    id_ = publish(notifyq, queue, 1)
    line = {"created_at": "2026-01-31T12:00Z", "level": "INFO", "logger": "shop", "text": "a\nb"}
    async with session(shared_database) as connection:
        for text in ("a\nb", "\x1b[2J"):
            await connection.fetch(
                "select notifyq.keep_logs("
                "  array[c.id], array[c.lock_token], array[c.attempts], array[$2::text::json]), "
                "messages.release(c.id, c.lock_token) from messages.claim(array[$1]) as c",
                queue,
                json.dumps([line | {"text": text}, line | {"text": "end"}]),
            )
    shown = notifyq.good("show", id_).out
    _, first, second = shown.split("\nlog of ")
    assert re.fullmatch(
        r"attempt 1, lock 1\n +[-\d: +]+ INFO shop: a\n {16}b\n +[-\d: +]+ INFO shop: end\n", first
    )
    assert second.startswith("attempt 1, lock 3\n")
    assert "\x1b" not in second
    (row,) = notifyq.good("show", id_, "--json").data
    assert [it["text"] for it in row["logs"]] == ["a\nb", "end", "\x1b[2J", "end"]


def test_a_key_gets_a_share_and_loses_it(notifyq: Notifyq, queue: str) -> None:
    notifyq.good("queues", "alter", queue, "--fair")
    assert notifyq.good("queues", "shares", queue).out == "every key has the weight 1\n"
    assert notifyq.good("queues", "share", queue, "gold", "2.5").out == f"changed {queue}\n"
    assert notifyq.good("queues", "share", queue, "gold", "2.5").out == "nothing changed\n"
    (row,) = notifyq.good("queues", "shares", queue, "--json").data
    assert row == {"queue": queue, "key": "gold", "weight": 2.5}
    assert "give a number" in notifyq.refused("queues", "share", queue, "gold", "much", code=2)
    assert "weight" in notifyq.refused("queues", "share", queue, "gold", "1e9")
    notifyq.good("queues", "share", queue, "gold", "none")
    assert notifyq.good("queues", "shares", queue, "--json").data == []


def test_a_queue_gets_limits_and_loses_them(notifyq: Notifyq, queue: str) -> None:
    def limits() -> dict[str, object]:
        row = next(row for row in notifyq.good("queues", "--json").data if row["queue"] == queue)
        names = ("concurrency", "rate", "rate_period", "key_rate", "key_rate_period", "ordered")
        return {name: row[name] for name in names}

    none = {
        "concurrency": None,
        "rate": None,
        "rate_period": 1,
        "key_rate": None,
        "key_rate_period": 1,
        "ordered": False,
    }
    assert limits() == none
    options = ("--concurrency", "5", "--rate", "100", "--key-rate", "5/10m", "--ordered")
    notifyq.good("queues", "alter", queue, *options)
    assert limits() == {
        "concurrency": 5,
        "rate": 100,
        "rate_period": 1,
        "key_rate": 5,
        "key_rate_period": 600,
        "ordered": True,
    }
    options = ("--concurrency", "none", "--rate", "none", "--key-rate", "none", "--unordered")
    notifyq.good("queues", "alter", queue, *options)
    assert limits() == none | {"key_rate_period": 600}
    assert "give a number from 1 on, or none" in notifyq.refused(
        "queues", "alter", queue, "--rate", "many/s", code=2
    )


def test_a_cancelled_message_is_not_dead(notifyq: Notifyq, queue: str) -> None:
    id_ = int(notifyq.good("publish", queue, "1").out)
    notifyq.good("cancel", id_, "--reason", "not needed")
    assert notifyq.good("dead", "ls", "-q", queue).out == "no dead messages\n"
    assert notifyq.good("dead", "groups", "-q", queue).out == "no dead messages\n"
    [row] = notifyq.good("dead", "ls", "-q", queue, "--cancelled", "--json").data
    assert (row["id"], row["status"]) == (id_, "rejected")
    assert (row["cancelled_by"], row["details"]) == (login(), "cancelled: not needed")
    assert login() in notifyq.good("dead", "ls", "-q", queue, "--cancelled").out
    assert f"cancelled_by    {login()}" in notifyq.good("show", id_).out
    assert notifyq.good("dead", "retry", "-q", queue).out == "0 published again\n"
    assert notifyq.good("dead", "retry", id_).out.startswith("1 published again as ")
    assert notifyq.good("dead", "ls", "-q", queue, "--cancelled").out == "no cancelled messages\n"
