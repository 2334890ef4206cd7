"""Settings: argument before environment before default, and no password in any text."""

from datetime import timedelta

import pytest

from notifyq import App, ConfigurationError
from notifyq.config import DatabaseSettings, WorkerSettings, dsn_from_environment, masked
from notifyq.database import Database


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSN", "POLL", "CONCURRENCY", "POOL_SIZE", "RETRY_FOR"):
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
def test_an_unknown_setting_is_refused_with_the_one_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no setting '{given}': did you mean '{meant}'"):
        WorkerSettings.load(**{given: 1})


def test_an_unknown_setting_like_no_other_is_refused_without_advice() -> None:
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


def test_an_empty_variable_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "")
    assert dsn_from_environment() is None


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


def test_a_password_is_masked_wherever_it_stands() -> None:
    for dsn in (
        "postgresql://me:secret@host/db",
        "postgresql://host/db?user=me&password=secret",
        "host=h password=secret",
        "me:secret@host/db",
        "postgresql://me:secret@[broken/db",
    ):
        assert "secret" not in masked(dsn)
