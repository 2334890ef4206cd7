"""Options of the data source: what is wrong is answer in one line, and the address never."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from notifyq.errors import AccessDeniedError, ConfigurationError, DatabaseUnavailableError
from notifyq.spark import connection
from notifyq.spark.connection import arrow_transaction, connect, connect_arrow, translated
from notifyq.spark.source.options import address, read_options, stream_options

DSN = "postgresql://u:hidden@localhost/x"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tabel": "archive"}, "has no option 'tabel': did you mean 'table'?"),
        ({"table": "jobs"}, "'jobs' is not one of archive, dead, events, messages"),
        ({"table": "events"}, "option stream is required for table events"),
        ({"stream": "s", "queue": "q"}, "events belong to streams"),
        ({"partitions": "0"}, "'0' is not a number from 1 to 100000"),
        ({"from": "now"}, "has no option 'from'"),
        ({"since": "today"}, "option since: 'today' is not a day like 2027-01-31 or an instant"),
        ({"since": "2027-01-31T12:00"}, "'2027-01-31T12:00' is not a day"),
        ({"until": "0001-01-01T00:00+02:00"}, "is not a day"),
        ({"since": "2027-01-31", "until": "2027-01-31T00:00Z"}, "is not after since"),
        ({"table": "messages", "since": "2027-01-31"}, "only for archive, dead, events"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        read_options({"dsn": DSN, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "messages"}, "cannot be read as a stream"),
        ({"since": "2027-01-31"}, "has no option 'since'"),
        ({"from": "yesterday"}, "is not start, now"),
        ({"failOnDataLoss": "no"}, "neither true nor false"),
        ({"maxRowsPerBatch": "many"}, "is not a number"),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        stream_options({"dsn": DSN, **options})


def test_the_address_comes_from_an_option_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFYQ_DSN", raising=False)
    with pytest.raises(ConfigurationError, match="set option dsn or dsn_file"):
        address({})
    monkeypatch.setenv("NOTIFYQ_DSN", "a")
    file = tmp_path / "dsn"
    file.write_text("b\n", encoding="utf-8")
    assert address({}) == "a"
    assert address({"dsn_file": str(file)}) == "b"
    assert address({"dsn_file": str(file), "dsn": "c"}) == "c"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        address({"dsn_file": str(tmp_path / "none")})
    assert "hidden" not in repr(read_options({"dsn": DSN}))


def test_a_thread_fetches_the_types_of_a_server_once(database: str) -> None:
    kept = []
    for name in ("one", "one", "other", "one"):
        with arrow_transaction(database, name=name) as run:
            answer = run("select current_setting('application_name') as name").read_all()
        assert answer.to_pylist() == [{"name": name}]
        kept.append(connection._last.database)
    assert kept[0] is kept[1]
    assert len({id(it) for it in kept}) == 3


@pytest.mark.parametrize("opened", [connect, connect_arrow])
@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:hidden@127.0.0.1:1/x",
        "postgresql://u:hidden pass@word@127.0.0.1:1/x",
        "host=127.0.0.1 password=hidden 'hidden",
        "hidden",
    ],
)
def test_no_error_of_a_connection_has_the_password(opened: object, dsn: str) -> None:
    with pytest.raises((ConfigurationError, DatabaseUnavailableError)) as caught:
        opened(dsn)  # type: ignore[operator]
    error: BaseException | None = caught.value
    assert "hidden" not in str(error)
    assert error is not None
    assert error.__suppress_context__


async def test_a_role_without_the_right_to_read_gets_an_error(
    database: str, connection: object
) -> None:
    session = connect(database)
    try:
        session.execute("create role e_nobody")
        session.execute("set role e_nobody")
        with (
            pytest.raises(AccessDeniedError, match=r"permission denied.*an admin must grant"),
            translated(),
        ):
            session.execute("select from messages.message_archive")
    finally:
        session.execute("reset role")
        session.execute("drop role if exists e_nobody")
        session.close()
