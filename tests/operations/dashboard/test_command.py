"""`notifyq dashboard`: its addresses, proxies, and how it stops."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from notifyq.cli import main as cli
from notifyq.operations.dashboard.serve import bind


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--host", "0.0.0.0"], "needs a password"),
        (["--base-path", "ops"], "is not like /notifyq"),
        (["--auth-file", "/none/users"], "No such file"),
        (["--password-file", "/none/users"], "No such file"),
        (["--auth-file", "a", "--password-file", "b"], "exclude each other"),
        (["--add-user", "ann"], "needs --auth-file"),
        (["--proxy", "*"], "is not an address"),
        (["--proxy", "10.0.0.1,proxy.local"], "is not an address"),
        (["--secret-file", "/none/secret"], "No such file"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    args: list[str], error: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "postgresql://127.0.0.1:1/none")
    monkeypatch.delenv("NOTIFYQ_DASHBOARD_PASSWORD", raising=False)
    assert cli._invoke(["dashboard", *args], debug=False) in {1, 2}
    text = capsys.readouterr().err
    assert error in text
    assert text.count("\n") == 1


def test_an_error_names_the_missing_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "postgresql://127.0.0.1:1/none")
    for name in ("uvicorn", "notifyq.operations.dashboard.serve"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli._invoke(["dashboard"], debug=False) == 1
    assert "pip install 'notifyq[dashboard]'" in capsys.readouterr().err


PASSWORD = "correct horse"


@asynccontextmanager
async def serving(database: str, *args: str, **environment: str) -> AsyncIterator[tuple[str, Any]]:
    """A dashboard as a process of its own: its address, and the process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "notifyq", "dashboard", "--port", "0", "--interval", "0.2", *args,
        env={**os.environ, "NOTIFYQ_DSN": database, **environment}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        found = re.match(r"dashboard on (http://127\.0\.0\.1:\d+)/ \((can write|read only)\)", line)
        assert found is not None
        yield found[1], process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def visiting(base: str) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    async with httpx.AsyncClient(base_url=base, headers={"origin": base}) as client:
        found = re.search(r'name="csrf" value="([^"]+)"', (await client.get("/login")).text)
        assert found is not None
        yield client, found[1]


async def test_clients_cannot_choose_the_address_of_their_attempts(database: str) -> None:
    async with (
        serving(database, NOTIFYQ_DASHBOARD_PASSWORD=PASSWORD) as (base, _),
        visiting(base) as (client, token),
    ):
        statuses = []
        for number in range(7):
            headers = {"x-forwarded-for": f"10.9.8.{number}", "x-forwarded-proto": "https"}
            headers |= {"x-forwarded-host": "evil.example", "forwarded": "for=10.9.8.7;proto=https"}
            answer = await client.post(
                "/login", data={"csrf": token, "password": "wrong"}, headers=headers
            )
            statuses.append(answer.status_code)
        assert statuses == [401] * 5 + [429] * 2
        asked = await client.get("/login", headers={"x-forwarded-proto": "https", "cookie": ""})
        assert "secure" not in asked.headers["set-cookie"].lower()


async def test_a_trusted_proxy_sets_the_client_address(database: str) -> None:
    async with (
        serving(database, "--proxy", "127.0.0.0/8", NOTIFYQ_DASHBOARD_PASSWORD=PASSWORD) as (
            base,
            _,
        ),
        visiting(base) as (client, token),
    ):

        async def attempt(forwarded: str) -> int:
            answer = await client.post(
                "/login", data={"csrf": token, "password": "wrong"},
                headers={"x-forwarded-for": forwarded},
            )  # fmt: skip
            return answer.status_code

        # What the proxy has added counts, not what came before it.
        assert [await attempt(f"10.9.8.{n}, 10.1.1.1") for n in range(6)] == [401] * 5 + [429]
        assert await attempt("10.1.1.2") == 401
        asked = await client.get("/login", headers={"x-forwarded-proto": "https", "cookie": ""})
        assert "secure" in asked.headers["set-cookie"].lower()


def test_who_reads_the_address_may_connect_at_once() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        pass


async def test_it_serves_until_a_signal(database: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    async with serving(database, "--password-file", str(password), "--allow-writes") as (base, it):
        await _use(base, it)
        assert await it.wait() == 0


async def _use(base: str, process: Any) -> None:
    async with visiting(base) as (client, token):
        data = {"csrf": token, "password": "correct horse"}
        assert (await client.post("/login", data=data)).status_code == 303
        assert "default" in (await client.get("/queues")).text
        # Also with a page that listens.
        async with client.stream("GET", "/live") as stream:
            async for text in stream.aiter_lines():
                if text.startswith("data:"):
                    process.send_signal(signal.SIGINT)
