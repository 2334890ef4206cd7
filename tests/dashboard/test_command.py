"""`notifyq dashboard`: where it may be served, who is let in, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from notifyq.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--host", "0.0.0.0"], "needs a password"),
        (["--base-path", "ops"], "is not like /notifyq"),
        (["--auth-file", "/none/users"], "No such file"),
        (["--password-file", "/none/users"], "No such file"),
        (["--auth-file", "a", "--password-file", "b"], "give one of them"),
        (["--add-user", "ann"], "needs --auth-file"),
    ],
)
def test_it_refuses_in_one_line(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "postgresql://127.0.0.1:1/none")
    monkeypatch.delenv("NOTIFYQ_DASHBOARD_PASSWORD", raising=False)
    assert cli._invoke(["dashboard", *args], debug=False) in {1, 2}
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1


def test_without_its_packages_it_says_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "postgresql://127.0.0.1:1/none")
    for name in ("uvicorn", "notifyq.dashboard.serve"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli._invoke(["dashboard"], debug=False) == 1
    assert "pip install 'notifyq[dashboard]'" in capsys.readouterr().err


async def test_it_serves_until_it_is_told_to_end(database: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "notifyq", "dashboard", "--port", "0", "--interval", "0.2",
        "--password-file", str(password), "--allow-writes",
        env={**os.environ, "NOTIFYQ_DSN": database}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        found = re.match(r"dashboard on (http://127\.0\.0\.1:\d+)/ \(can write\)", line)
        assert found is not None
        await _use(found[1], process)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _use(base: str, process: Any) -> None:
    async with httpx.AsyncClient(base_url=base, headers={"origin": base}) as client:
        token = re.search(r'name="csrf" value="([^"]+)"', (await client.get("/login")).text)
        assert token is not None
        data = {"csrf": token[1], "password": "correct horse"}
        assert (await client.post("/login", data=data)).status_code == 303
        assert "default" in (await client.get("/queues")).text
        # Also with a page that listens.
        async with client.stream("GET", "/live") as stream:
            async for text in stream.aiter_lines():
                if text.startswith("data:"):
                    process.send_signal(signal.SIGINT)
