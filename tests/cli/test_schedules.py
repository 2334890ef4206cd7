"""`notifyq schedules`: from defined to removed, for people and for programs."""

from __future__ import annotations

from pathlib import Path

from cli.programs import Notifyq

APP = """
import notifyq

app = notifyq.App()


@app.cron("@daily", name="of the app", queue="cron")
def run() -> None: ...
"""


def test_a_schedule_from_add_to_remove(notifyq: Notifyq, queue: str) -> None:
    run = notifyq.good
    assert run("schedules").out == "no schedules\n"
    add = ["schedules", "add", "it's [bold]", "0 8 * * mon-fri", queue, '{"n": 1}']
    add += ["--timezone", "Europe/Oslo", "--jitter", "5s", "--overlap", "skip", "--backfill", "0"]
    add += ["--grace", "1m", "--priority", "3", "--type", "t", "--header", "h=1", "--key", "k"]
    add += ["--max-attempts", "2", "--when-unserved", "skip"]
    assert run(*add).out.startswith("defined it's [bold], next at 2")
    assert run(*add).out.startswith("it's [bold] is defined so already, next at 2")
    (row,) = run("schedules", "--json").data
    given = {
        "name": "it's [bold]", "cron": "0 8 * * mon-fri", "queue": queue, "payload": {"n": 1},
        "timezone": "Europe/Oslo", "jitter": 5, "overlap": "skip", "backfill": 0, "grace": 60,
        "priority": 3, "type": "t", "headers": {"h": 1}, "key": "k", "max_attempts": 2,
        "enabled": True, "last_error": None, "when_unserved": "skip", "unserved_at": None,
    }  # fmt: skip
    assert {name: row[name] for name in given} == given
    number = int(run("schedules", "run", "it's [bold]").out)
    assert run("show", str(number), "--json").data[0]["message"] == {"n": 1}
    assert run("schedules", "disable", "it's [bold]").out == "disabled it's [bold]\n"
    assert run("schedules", "disable", "it's [bold]").out == "it's [bold] was disabled already\n"
    listed = run("schedules").out
    assert "disabled" in listed
    assert str(number) in listed
    assert run(*add[:-4]).out == "defined it's [bold], disabled\n"
    assert run("schedules", "enable", "it's [bold]").out == "enabled it's [bold]\n"
    (first, _) = run("schedules", "next", "it's [bold]", "-n", "2", "--json").data
    assert first["at"] == run("schedules", "--json").data[0]["next_at"]
    assert run("schedules", "remove", "it's [bold]").out == "removed it's [bold]\n"
    gone = notifyq.refused("schedules", "remove", "it's [bold]")
    assert gone == "notifyq: there is no schedule 'it''s [bold]': `notifyq schedules` lists them\n"


def test_next_shows_the_times_of_an_expression(notifyq: Notifyq) -> None:
    when = ["schedules", "next", "30 2 * * *", "--timezone", "Europe/Oslo", "-n", "2"]
    shown = notifyq.good(*when, "--since", "2026-03-28T12:00+01:00").out
    assert "Sun 2026-03-29 03:00:00 +0200  past" in shown
    assert "Mon 2026-03-30 02:30:00 +0200" in shown


def test_a_wrong_schedule_is_refused_in_one_line(notifyq: Notifyq, queue: str) -> None:
    for args, complaint in (
        (["next", "0 25 * * *"], "'25' cannot be the hour"),
        (["next", "@daily", "--timezone", "Europe/Olso"], "no time zone 'Europe/Olso'"),
        (["add", "s", "@daily", "nowhere"], "there is no queue 'nowhere'"),
        (["add", "s", "@daily", queue, "{x"], "the message is not JSON"),
        (["run", "s"], "there is no schedule 's'"),
        (["disable", "s"], "there is no schedule 's'"),
    ):
        assert complaint in notifyq.refused("schedules", *args), args


def test_apply_creates_the_schedules_of_an_app(
    notifyq: Notifyq, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "clockwork.py").write_text(APP)
    notifyq.good("schedules", "add", "left over", "@daily", queue)
    apply = ["schedules", "apply", "clockwork:app"]
    done = notifyq.good(*apply, folder=tmp_path)
    assert done.out == "defined of the app\nnot of this app: left over\n"
    done = notifyq.good(*apply, folder=tmp_path)
    assert done.out == "all is defined so already\nnot of this app: left over\n"
