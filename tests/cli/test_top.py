"""The command `notifyq top`: in a terminal, and where there is none."""

from __future__ import annotations

import json
import signal

from cli.programs import Notifyq, Terminal
from operations.top.filled import fill
from support.database import Connection


async def test_top_runs_in_a_terminal_until_q(database: str, connection: Connection) -> None:
    await fill(connection)
    with Terminal(database, "top", "--read-only") as terminal:
        terminal.show("billing")
        terminal.show("paused")
        terminal.type("3")
        terminal.show("TimeoutError")
        terminal.type("q")
        assert terminal.end() == 0


async def test_a_signal_restores_the_terminal(database: str, connection: Connection) -> None:
    await fill(connection)
    with Terminal(database, "top") as terminal:
        terminal.show("billing")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0
        assert "\x1b[?1049l" in terminal.shown  # the screen of before


async def test_once_prints_the_figures(
    anywhere: Notifyq, database: str, connection: Connection
) -> None:
    await fill(connection)
    env = {"NOTIFYQ_DSN": database}
    text = anywhere.good("top", "--once", env=env).out
    assert "QUEUES" in text
    assert "TimeoutError: bank" in text
    assert max(map(len, text.splitlines())) <= 120
    found = json.loads(anywhere.good("top", "--once", "--json", env=env).out)
    assert {it["queue"]: it["waiting"] for it in found["queues"]}["billing"] == 66
    assert found["dead"][0]["dead"] == 7


def test_without_a_terminal_top_is_refused_in_one_line(notifyq: Notifyq) -> None:
    assert "top --once" in notifyq.refused("top")
    assert "--json needs --once" in notifyq.refused("top", "--json", code=2)
