"""A client under judgement: its process, its queue, and its messages in the database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Row: TypeAlias = "asyncpg.Record"

HOUR = 3600.0


class BrokenRuleError(Exception):
    """What the client did, or failed to do."""


def require(condition: object, what: str) -> None:
    """Raise BrokenRuleError unless the condition holds."""
    if not condition:
        raise BrokenRuleError(what)


class Client:
    """One queue, and the process of a client that serves it."""

    def __init__(
        self,
        connection: Connection,
        dsn: str,
        command: Sequence[str],
        folder: Path,
        patience: float,
    ) -> None:
        self.connection = connection
        self.queue = f"conformance_{os.urandom(4).hex()}"
        self.folder = folder
        self._dsn = dsn
        self._command = command
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._output = folder / "output"

    async def create_queue(self, **options: Any) -> None:
        """Create the queue of the client with these options."""
        named = "".join(f", {name} => '{option}'" for name, option in options.items())
        await self.connection.execute(f"select messages.create_queue('{self.queue}'{named})")

    async def start(self, *, poll: float = 1.0) -> None:
        """Start the process; `poll` is the longest time it may wait for a notification."""
        with self._output.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, "--dsn", self._dsn, "--queue", self.queue, "--poll", f"{poll:g}",
                "--grace", "1", stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    async def stop(self) -> int:
        """Send SIGTERM, and return the exit code of the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._patience):
                return await self._process.wait()
        except TimeoutError:
            raise BrokenRuleError("it still runs long after SIGTERM") from None

    async def kill(self) -> None:
        """End the process and all that it has started."""
        if self._process is not None:
            with suppress(BrokenRuleError, ProcessLookupError, TimeoutError):
                async with asyncio.timeout(5):
                    await self.stop()
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def publish(self, do: str, **fields: Any) -> int:
        """Publish a message for the handler of the client; return its id."""
        payload = json.dumps({"do": do, **fields})
        return int(
            await self.connection.fetchval(
                "select messages.publish($1, $2::text::jsonb)", self.queue, payload
            )
        )

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str) -> Any:
        """Poll until the condition is true, and return what it gave; else the rule is broken."""
        deadline = time.monotonic() + self._patience
        while not (found := await condition()):
            code = None if self._process is None else self._process.returncode
            require(code is None, f"the client ended with code {code}: {self._last_line()}")
            require(time.monotonic() < deadline, f"{what}; {self._last_line()}")
            await asyncio.sleep(0.02)
        return found

    def _last_line(self) -> str:
        lines = self._output.read_text(errors="replace").strip().splitlines()
        return f"its last line: {lines[-1]}" if lines else "it wrote nothing"

    async def live(self, id_: int) -> Row | None:
        """Return the live message, or None."""
        return await self.connection.fetchrow(
            "select m.*, m.lock_expires_at > clock_timestamp() as is_held, "
            "m.available_at - clock_timestamp() as wait from messages.message as m where id = $1",
            id_,
        )

    async def archived(self, id_: int) -> Row | None:
        """Return the archived message, or None."""
        return await self.connection.fetchrow("select * from messages.archive_find($1)", id_)

    async def finished(self, id_: int, status: str = "success") -> Row:
        """Wait until the message is archived, and require its status."""
        row: Row = await self.until(
            lambda: self.archived(id_), f"message {id_} is not archived, but shall be {status}"
        )
        require(
            row["status"] == status,
            f"message {id_} is archived as {row['status']}, not {status}: {row['details']}",
        )
        return row

    async def falls_idle(self) -> None:
        """Give the client time to poll once more after a message, and to wait.

        No event shows that a client waits. If one needs longer, the next message may be found by
        that poll: then a rule about waking up is kept by chance, but never broken.
        """
        await asyncio.sleep(1.5)

    async def waiting(self, what: str) -> tuple[int, Path, Row]:
        """Publish a message whose handler waits for a file; return when it has begun to wait."""
        file = self.folder / what
        id_ = await self.publish("wait", file=str(file))
        begun = file.with_name(f"{what}.begun")

        async def has_begun() -> bool:
            return begun.exists()

        await self.until(has_begun, f"the handler of message {id_} is not called")
        row = await self.live(id_)
        require(row is not None, f"message {id_} is finished while its handler still runs")
        assert row is not None
        require(row["state"] == "locked", f"message {id_} is not locked while its handler runs")
        return id_, file, row


@asynccontextmanager
async def client(dsn: str, command: Sequence[str], patience: float) -> AsyncIterator[Client]:
    """Give a client with a queue of its own; both are gone afterwards."""
    async with AsyncExitStack() as stack:
        connection: Connection = await asyncpg.connect(dsn)
        stack.push_async_callback(connection.close)
        await connection.set_type_codec(
            "jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        it = Client(connection, dsn, command, folder, patience)
        stack.push_async_callback(
            connection.execute,
            "select messages.drop_queue(name, force => true) from messages.queue "
            f"where name like '{it.queue}%'",
        )
        stack.push_async_callback(it.kill)
        yield it
