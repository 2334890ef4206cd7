"""Settings: argument before environment before default, and no password in any text."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from notifyq import App, ConfigurationError
from notifyq.cli.options import masks_of
from notifyq.config import (
    BrokerSettings,
    CommandSettings,
    DatabaseSettings,
    RelaySettings,
    WorkerSettings,
    dsn_from_environment,
    dsn_from_file,
    exposure,
    listen_dsn_from_environment,
)
from notifyq.database.pool import Database
from notifyq.dsn import has_password, masked
from notifyq.server import development
from notifyq.server.binaries import default_binaries


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSN", "DSN_FILE", "POLL", "CONCURRENCY", "POOL_SIZE", "RETRY_FOR"):
        monkeypatch.delenv(f"NOTIFYQ_{name}", raising=False)


def test_an_argument_wins_over_the_environment_which_wins_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert WorkerSettings.load().concurrency == 10
    monkeypatch.setenv("NOTIFYQ_CONCURRENCY", "7")
    assert WorkerSettings.load().concurrency == 7
    assert WorkerSettings.load(concurrency=3).concurrency == 3
    assert WorkerSettings.load(concurrency=None).concurrency == 7


def test_a_duration_is_a_timedelta_or_seconds() -> None:
    assert WorkerSettings.load(poll=timedelta(seconds=5)).poll == timedelta(seconds=5)
    assert WorkerSettings.load(poll=0.5).poll == timedelta(milliseconds=500)


@pytest.mark.parametrize(
    ("given", "meant"), [("concurency", "concurrency"), ("pol", "poll"), ("gracee", "grace")]
)
def test_an_unknown_setting_is_refused_with_a_similar_one(given: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no setting '{given}': did you mean '{meant}'"):
        WorkerSettings.load(**{given: 1})


def test_an_unknown_setting_unlike_any_other_is_refused_without_advice() -> None:
    with pytest.raises(ConfigurationError, match=r"no setting 'zzz'$"):
        DatabaseSettings.load(zzz=1)


@pytest.mark.parametrize("value", [0, -1, 10_001, "many"])
def test_a_value_out_of_bounds_is_refused_with_the_name_of_its_setting(value: object) -> None:
    with pytest.raises(ConfigurationError, match="setting concurrency: "):
        WorkerSettings.load(concurrency=value)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        WorkerSettings.load().concurrency = 3


def test_the_environment_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    with pytest.raises(ConfigurationError, match="set NOTIFYQ_DSN"):
        _ = app.database
    monkeypatch.setenv("NOTIFYQ_DSN", "postgresql://late@host/db")
    assert app.database.dsn == "postgresql://late@host/db"


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_variable_is_refused(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    reads: dict[str, Callable[[], object]] = {
        "NOTIFYQ_DSN": dsn_from_environment,
        "NOTIFYQ_DSN_FILE": dsn_from_environment,
        "NOTIFYQ_LISTEN_DSN": listen_dsn_from_environment,
        "NOTIFYQ_LISTEN_DSN_FILE": listen_dsn_from_environment,
        "NOTIFYQ_HOME": development,
        "NOTIFYQ_PG_BIN": default_binaries,
        "NOTIFYQ_MASK": masks_of,
        "NOTIFYQ_POOL_SIZE": DatabaseSettings.load,
        "NOTIFYQ_GRACE": WorkerSettings.load,
        "NOTIFYQ_METRICS_HOST": CommandSettings.load,
        "NOTIFYQ_AUTOSTART": BrokerSettings.load,
        "NOTIFYQ_RELAY_BATCH": RelaySettings.load,
    }
    for variable, read in reads.items():
        with monkeypatch.context() as patch:
            patch.setenv(variable, blank)
            with pytest.raises(ConfigurationError, match=f"^{variable} is set, but empty: "):
                read()


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_dsn_is_refused(blank: str) -> None:
    makes: list[Callable[[str], object]] = [
        App,
        Database,
        lambda dsn: App(dsn=dsn),
        lambda dsn: App(DSN, listen_dsn=dsn),
    ]
    for make in makes:
        with pytest.raises(ConfigurationError, match="is empty: give one like postgresql://"):
            make(blank)


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:secret@host:5432/db", "postgresql://u:***@host:5432/db"),
        ("postgresql://u:sec%40ret@host/db?x=1", "postgresql://u:***@host/db?x=1"),
        ("postgresql://u:secret@a:1,b:2/db", "postgresql://u:***@a:1,b:2/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("postgresql://u@host/db", "postgresql://u@host/db"),
        ("postgresql://u:secret@[::1/db", "(a DSN that cannot be read)"),
    ],
)
def test_a_dsn_is_shown_without_its_password(dsn: str, shown: str) -> None:
    assert masked(dsn) == shown
    assert "secret" not in masked(dsn)
    assert "secret" not in repr(Database(dsn))


def test_a_password_is_masked_anywhere_in_a_text() -> None:
    for dsn in (
        "postgresql://me:secret@host/db",
        "postgresql://host/db?user=me&password=secret",
        "host=h password=secret",
        "host=h password = 'a secret' dbname=x",
        "host=h password='a\\' secret' dbname=x",
        "host=h password=a\\ secret dbname=x",
        "host=h password=a secret",
        "host=h sslpassword=secret",
        "postgresql+asyncpg://me:secret@host/db",
        "postgresql+psycopg://host/db?user=me&password=secret",
        "me:secret@host/db",
        "me:secret@host://db",
        "host=h password=secret options=a://b",
        "postgresql://me:secret\n@host/db",
        "postgresql://me:secret@[broken/db",
    ):
        assert "secret" not in masked(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql:///x",
        "postgresql://",
        "postgresql://?service=billing",
        "postgresql:///x?host=/run/postgresql",
        "postgresql://[::1]:5432/x",
        "postgresql://me@a,b:2,[::1]:3/x?sslmode=verify-full",
        "postgresql+asyncpg://me@a/x",
        "host=h dbname='x y'",
        "nonsense",
    ],
)
def test_a_dsn_without_a_password_is_shown_as_it_is(dsn: str) -> None:
    assert masked(dsn) == dsn
    assert not has_password(dsn)


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://me:s3cr3t{}s3cr3t@db.example:5432/x",
        "postgresql://me:s3cr3t{}s3cr3t@/x?host=/run",
        "postgresql://db.example/x?user=me&password=s3cr3t{}s3cr3t",
        "postgresql://db.example/x?p%61ssword=s3cr3t{}s3cr3t",
        "postgresql+asyncpg://me:s3cr3t{}s3cr3t@db.example:5432/x",
        "host=db.example password=s3cr3t{}s3cr3t dbname=x",
        "host=db.example password='s3cr3t{}s3cr3t' dbname=x",
    ],
)
def test_no_part_of_a_password_with_odd_characters_is_shown(form: str) -> None:
    for odd in ("a:b", "a@b", "a/b", "a?b", "a#b", "a&b", "a=b", "[a", "%", " ", "ü"):
        for dsn in (form.format(odd), form.format(quote(odd, safe=""))):
            assert "s3cr3t" not in masked(dsn), dsn
            assert has_password(dsn), dsn


def test_a_password_instead_of_a_port_is_not_shown() -> None:
    assert "s3cr3t" not in masked("postgresql://me:s3cr3t")


DSN = "postgresql://me:secret@host/db"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "dsn"
    file.write_text(f"\n  {DSN} \n\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_private_file_holds_the_dsn(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert dsn_from_file(str(file)) == DSN


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_may_use_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match=r"by others.*: `chmod 600` it") as caught:
        dsn_from_file(str(file))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("owner", "mode", "fault"),
    [
        (0, 0o440, None),  # as containers hand out secrets
        (0, 0o640, None),
        (0, 0o444, "may be read by others"),
        (0, 0o660, "may be written by others"),
        (4321, 0o440, "may be read by others"),
        (4321, 0o600, None),
        (4322, 0o600, "belongs to another user"),
    ],
)
def test_a_file_of_root_may_be_read_by_a_group(
    monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, fault: str | None
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    found = exposure(os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0)))
    assert (found is None) == (fault is None)
    assert found is None or (fault is not None and found.startswith(fault))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must hold one line, not 0"),
        (b"postgresql://a:secret@b/c\npostgresql://a:secret@b/d\n", "must hold one line, not 2"),
        (b"\xff\xfesecret", "is not text in UTF-8"),
    ],
)
def test_a_file_with_anything_else_is_refused(file: Path, content: bytes, reason: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        dsn_from_file(str(file))
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(ConfigurationError, match="cannot be read: "):
            dsn_from_file(str(path))


def test_a_pipe_holds_the_dsn_as_well() -> None:
    reading, writing = os.pipe()
    os.write(writing, DSN.encode())
    os.close(writing)
    assert dsn_from_file(f"/dev/fd/{reading}") == DSN
    os.close(reading)


def test_the_variable_wins_over_the_file_which_is_read_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN_FILE", str(file))
    assert App().database.dsn == DSN
    monkeypatch.setenv("NOTIFYQ_DSN", "postgresql://late@host/db")
    assert App().database.dsn == "postgresql://late@host/db"
    file.chmod(0o644)
    assert App().database.dsn == "postgresql://late@host/db"
    monkeypatch.delenv("NOTIFYQ_DSN")
    with pytest.raises(ConfigurationError, match="chmod 600"):
        _ = App().database


def test_no_object_shows_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", DSN)
    app = App(listen_dsn=DSN)
    app.handler("q")(lambda: None)
    shown = [app, app.database, app.database.dedicated(), app.worker(), app.registry, app.admin]
    assert "secret" not in repr([*shown, WorkerSettings.load(), DatabaseSettings.load()])
    assert "secret" not in "".join(map(str, shown))


def test_a_size_that_no_number_holds_is_an_error_of_the_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"^setting max_memory: .* too large for a size"):
        CommandSettings.load(max_memory="9" * 400 + "TB")
