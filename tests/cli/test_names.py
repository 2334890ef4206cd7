"""Unknown names: the error suggests similar ones and names commands, not SQL."""

from __future__ import annotations

import re

import pytest

from cli.programs import Notifyq
from cli.test_listing import archive
from notifyq import errors
from notifyq.cli.hints import HINTS, advised
from notifyq.schema.files import relative
from support.database import INIT_FILES, session

# Files whose hints no command can meet: of batches, procedures and tables of the caller.
_SQL_ONLY = {
    "init/bootstrap/schema.sql",
    "init/common/positions.sql",
    "init/queue/checks.sql",
    "init/queue/owned.sql",
    "init/queue/typed.sql",
    "init/stream/batches.sql",
    "init/stream/broker.sql",
    "init/stream/broker_loop.sql",
    "init/stream/capture.sql",
    "init/stream/captures.sql",
    "init/stream/settle.sql",
}
_FUNCTION = re.compile(r"messages\.\w+\(|\bselect \w|\b[a-z_]+\(\)|=> ")


@pytest.fixture
async def names(notifyq: Notifyq, shared_database: str) -> str:
    async with session(shared_database) as connection:
        await connection.execute("""
          select messages.create_queue('billing'), messages.create_stream('orders'),
            messages.subscribe('orders', 'warehouse') where not exists (
              select from messages.queue where name = 'billing');
        """)
    return shared_database


QUEUE = "there is no queue 'biling': did you mean 'billing'? Or create it with "
STREAM = "there is no stream 'oders': did you mean 'orders'? Or create it with "


@pytest.mark.parametrize(
    "args",
    [
        ("ls", "--queue", "biling"),
        ("ls", "--queue", "biling", "--json"),
        ("ls", "--finished", "-q", "biling"),
        ("ls", "--status", "failed", "-q", "biling"),
        ("dead", "ls", "-q", "biling"),
        ("dead", "groups", "-q", "biling"),
        ("dead", "retry", "-q", "biling"),
        ("dead", "retry", "-q", "biling", "--fingerprint", "x"),
        ("dead", "delete", "-q", "biling", "--fingerprint", "x"),
        ("dead", "watch", "-q", "biling"),
        ("archive", "export", "out.csv", "-q", "biling"),
        ("queues", "pause", "biling"),
        ("queues", "shares", "biling"),
        ("publish", "biling", "1"),
    ],
    ids=" ".join,
)
def test_an_unknown_queue_gets_a_similar_name(
    notifyq: Notifyq, names: str, args: tuple[str, ...]
) -> None:
    assert notifyq.dsn == names
    assert f"notifyq: {QUEUE}`notifyq queues create biling`\n" in notifyq.refused(*args)


@pytest.mark.parametrize(
    "args",
    [
        ("stream", "lag", "oders"),
        ("stream", "tail", "oders"),
        ("stream", "pause", "oders"),
        ("stream", "subscribe", "oders", "x"),
    ],
    ids=" ".join,
)
def test_an_unknown_stream_gets_a_similar_name(
    notifyq: Notifyq, names: str, args: tuple[str, ...]
) -> None:
    assert notifyq.dsn == names
    assert f"notifyq: {STREAM}`notifyq stream create oders`\n" in notifyq.refused(*args)


@pytest.mark.parametrize(
    "args",
    [
        ("stream", "seek", "orders", "warehose", "now"),
        ("stream", "unsubscribe", "orders", "warehose"),
        ("dead", "ls", "--subscriber", "warehose"),
        ("dead", "groups", "--subscriber", "warehose"),
        ("dead", "retry", "--subscriber", "warehose"),
    ],
    ids=" ".join,
)
def test_an_unknown_subscriber_gets_a_similar_name(
    notifyq: Notifyq, names: str, args: tuple[str, ...]
) -> None:
    assert notifyq.dsn == names
    assert "did you mean 'warehouse'?" in notifyq.refused(*args)


def test_a_subscriber_of_another_stream_is_not_the_name_that_was_meant(
    notifyq: Notifyq, names: str
) -> None:
    assert notifyq.dsn == names
    assert "did you mean" not in notifyq.refused("stream", "unsubscribe", "other", "warehouse")


def test_a_queue_that_is_a_stream_gets_its_name(notifyq: Notifyq, names: str) -> None:
    assert notifyq.dsn == names
    assert "did you mean 'orders'?" in notifyq.refused("publish", "ordres", "1")
    assert "did you mean 'billing'?" in notifyq.refused("stream", "tail", "biling")


async def test_an_empty_or_dropped_queue_is_known(notifyq: Notifyq, names: str) -> None:
    assert notifyq.good("ls", "-q", "billing").out == "no messages\n"
    assert notifyq.good("dead", "ls", "-q", "orders").out == "no dead messages\n"
    notifyq.good("queues", "create", "gone")
    await archive(names, "gone", 1)
    notifyq.good("queues", "drop", "gone")
    assert notifyq.good("ls", "-q", "gone").out == "no messages\n"
    assert " gone " in notifyq.good("dead", "ls", "-q", "gone").out


def test_hints_of_commands_contain_no_sql(notifyq: Notifyq, names: str) -> None:
    notifyq.good("publish", "billing", "1")
    notifyq.good("stream", "pause", "orders")
    for args, hint in (
        (("queues", "drop", "billing"), "or add --force"),
        (("stream", "drop", "orders"), "or add --force"),
        (("publish", "orders", "1"), "with `notifyq stream resume orders`"),
        (("schedules", "remove", "nosuch"), "`notifyq schedules` lists them"),
        (("schedules", "run", "nosuch"), "`notifyq schedules` lists them"),
    ):
        result = notifyq(*args)
        assert hint in result.err + result.out
        assert not _FUNCTION.search(result.err), result.err
    notifyq.good("stream", "resume", "orders")


def test_each_sql_hint_has_one_for_commands() -> None:
    """But for errors that no command can meet."""
    by_state = {kind.sqlstate: kind for kind in errors.DatabaseError.__subclasses__()}
    raises = re.compile(r"raise exception using(.*?);\n", re.DOTALL)
    found = 0
    for file in INIT_FILES:
        for text in raises.findall(file.read_text(encoding="utf-8")):
            state = re.search(r"errcode = '(NQ\d+)'", text)
            hint = text.partition("hint = ")[2]
            if state is None or not hint or not _FUNCTION.search(hint):
                continue
            found += 1
            assert by_state[state[1]] in HINTS or relative(file) in _SQL_ONLY, (file, hint)
    assert found > 10


@pytest.mark.parametrize("kind", HINTS)
def test_hints_of_commands_name_no_function(kind: type[errors.DatabaseError]) -> None:
    text = advised(kind("there is no 'it''s' of 'that'"))
    assert not _FUNCTION.search(text)
    assert "{" not in text


def test_a_stream_is_no_queue_to_list(notifyq: Notifyq, names: str) -> None:
    assert "orders is a stream" in notifyq.good("ls", "--queue", "orders").out
    assert "is a stream" not in notifyq.good("ls", "--queue", "billing").out
