"""Checks of the way to the server: does a bell come through it, and can others look on."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from notifyq.config import has_password
from notifyq.database.pool import connect
from notifyq.operations.doctor.finding import fail, ok, skipped, warn

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look

_HEARD_WITHIN = 3.0
"""Seconds; on a healthy way it takes milliseconds."""


async def check_bell(look: Look) -> Finding:
    """Whether a notification arrives, from one session of this DSN to another."""
    if await look.value("select pg_is_in_recovery()"):
        return skipped("a standby has no bells", "connect to the primary")
    heard = asyncio.Event()
    # Of its own, so that no worker wakes up.
    channel = f"notifyq_doctor_{uuid.uuid4().hex}"
    listener = await connect(look.listen_dsn or look.dsn, name="notifyq doctor")
    try:
        await listener.add_listener(channel, lambda *_: heard.set())
        await look.value("select pg_notify($1, '')", channel)
        async with asyncio.timeout(_HEARD_WITHIN):
            await heard.wait()
    except TimeoutError:
        if look.listen_dsn is not None:
            return fail(
                "no bell arrives at the listen DSN",
                "it must be the address of the same database without a pooler",
            )
        return warn(
            "no bell arrives, as behind a pooler in transaction mode: messages are found by "
            "polling, up to a second later",
            "give a direct address to listen at, NOTIFYQ_LISTEN_DSN or App(dsn, listen_dsn=…), or "
            "use session mode",
        )
    finally:
        # A pooler would keep the subscription for whoever gets that session next.
        listener.terminate()
    return ok("a bell arrives" + (" at the listen DSN" if look.listen_dsn is not None else ""))


async def check_pooler(look: Look) -> Finding:
    """Whether a pooler is between, and lends a session for each transaction anew."""
    try:
        pids = await _pids(look)
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        pids = None  # each transaction had another session, with other statements
    if pids is None or len(pids) > 1:
        found = "a pooler is between that lends sessions by transaction"
        if look.listen_dsn is not None:
            return ok(f"{found}, and another address to listen at")
        return warn(
            f"{found}: neither LISTEN nor the lock of a session outlives one",
            "give a direct address beside it, NOTIFYQ_LISTEN_DSN or App(dsn, listen_dsn=…)",
        )
    return ok("a pooler is between, in session mode" if pids else "no pooler is between")


async def _pids(look: Look) -> set[int]:
    """Server processes that the session of the look had; none, if there is no pooler."""
    ask = "select pg_backend_pid()"
    seen = {await look.value(ask)}
    # What the other side called its process when the session began; a pooler makes that up.
    if seen == {look.connection.get_server_pid()}:
        return set()
    others = [await connect(look.dsn, name="notifyq doctor") for _ in range(2)]
    try:
        # Whoever is in a transaction keeps its server process. One that is not gets another.
        for other in others:
            await other.execute("begin; select 1")
            seen.add(await look.value(ask))
    finally:
        for other in others:
            other.terminate()
    return seen


async def check_tls(look: Look) -> Finding:
    """Whether others can read what is sent, or pretend to be the server."""
    row = await look.row("""
        select s.ssl, s.version, host(inet_server_addr()) as server
        from (select pg_backend_pid() as pid) as me
        left join pg_stat_ssl as s on s.pid = me.pid
    """)
    if row["server"] is None or is_local(look.dsn):
        return ok("the server is on this machine")
    mode = _option(look.dsn, "sslmode", "PGSSLMODE") or "prefer"
    if not row["ssl"]:
        return warn(
            "messages and passwords cross the network in the clear",
            "give the server a certificate (ssl_cert_file, ssl_key_file), then `alter system set "
            "ssl = on; select pg_reload_conf()`, and set sslmode=verify-full in the DSN",
        )
    if mode != "verify-full":
        return warn(
            f"{row['version']}, but sslmode={mode} does not check whose certificate it is",
            "set sslmode=verify-full and sslrootcert=FILE in the DSN",
        )
    return ok(f"{row['version']}, and the certificate is checked")


def is_local(dsn: str) -> bool:
    """Whether all hosts of the DSN are this machine; a host that is not given is."""
    hosts = urlsplit(dsn).netloc.rpartition("@")[2] or _option(dsn, "host", "PGHOST")
    return all(_is_loopback(_without_port(unquote(host))) for host in hosts.split(","))


def _without_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host in {"", "localhost"} or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _option(dsn: str, name: str, variable: str) -> str:
    given = parse_qs(urlsplit(dsn).query).get(name)
    return given[-1] if given else os.environ.get(variable, "")


async def check_password(look: Look) -> Finding:
    """Whether other users of this machine can read a password."""
    shown = sorted(await asyncio.to_thread(_showing))
    if shown:
        return warn(
            f"the arguments of process {', '.join(map(str, shown))} show a password to every user",
            "use --dsn-file, NOTIFYQ_DSN, a service file or ~/.pgpass instead of --dsn, and change "
            "the password",
        )
    both = [os.environ.get(name) for name in ("NOTIFYQ_DSN", "NOTIFYQ_DSN_FILE")]
    if all(both) and look.source == "NOTIFYQ_DSN":
        return warn(
            "NOTIFYQ_DSN and NOTIFYQ_DSN_FILE are both set, and the file is not read",
            "unset one of them",
        )
    holds = "holds a password" if has_password(look.dsn) else "holds no password"
    return ok(f"the DSN is from {look.source} and {holds}")


def _showing() -> list[int]:
    """Processes of notifyq on this machine whose arguments hold a password."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended, or is hidden from us
            continue
        is_ours = any("notifyq" in argument for argument in arguments[:4])
        urls = [argument.removeprefix("--dsn=") for argument in arguments if "://" in argument]
        if is_ours and any(url.startswith("postgres") and has_password(url) for url in urls):
            found.append(int(folder.name))
    return found


CHECKS = {"bell": check_bell, "pooler": check_pooler, "tls": check_tls, "password": check_password}
