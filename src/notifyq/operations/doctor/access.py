"""Checks of the connection: notifications, poolers, TLS, and passwords that others can read."""

import asyncio
import ipaddress
import os
import re
import uuid
from pathlib import Path

import asyncpg

from notifyq.database.pool import connect
from notifyq.dsn import has_password, hosts_of, options_of
from notifyq.operations.doctor.finding import Context, Finding, fail, ok, skipped, warn

_LIKE_DSN = re.compile(r"\Apostgres(ql)?(\+\w+)?://|\bpassword\s*=")
_ARRIVES_WITHIN = 3.0
"""Seconds; usually it takes milliseconds."""


async def check_notifications(context: Context) -> Finding:
    """Whether a notification arrives from one session of this DSN at another."""
    if await context.value("select pg_is_in_recovery()"):
        return skipped("a standby sends no notifications", "connect to the primary")
    arrived = asyncio.Event()
    # A channel of its own, or workers would wake up.
    channel = f"notifyq_doctor_{uuid.uuid4().hex}"
    listener = await connect(context.listen_dsn or context.dsn, name="notifyq doctor")
    try:
        await listener.add_listener(channel, lambda *_: arrived.set())
        await context.value("select pg_notify($1, '')", channel)
        async with asyncio.timeout(_ARRIVES_WITHIN):
            await arrived.wait()
    except TimeoutError:
        if context.listen_dsn is not None:
            return fail(
                "no notification arrives at the listen DSN",
                "it must be the address of the same database without a pooler",
            )
        return warn(
            "no notification arrives, as behind a pooler in transaction mode: workers poll and "
            "find messages up to a second later",
            "give a direct address to listen at, NOTIFYQ_LISTEN_DSN or App(dsn, listen_dsn=…), or "
            "use session mode",
        )
    finally:
        # A pooler would hand the session with its LISTEN to another client.
        listener.terminate()
    return ok(
        "a notification arrives" + (" at the listen DSN" if context.listen_dsn is not None else "")
    )


async def check_pooler(context: Context) -> Finding:
    """Whether a pooler in transaction mode is in between."""
    try:
        pids = await _pids(context)
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        pids = None  # each transaction had another session with other prepared statements
    if pids is None or len(pids) > 1:
        found = "a pooler in transaction mode is in between"
        if context.listen_dsn is not None:
            return ok(f"{found}, and the listen DSN goes past it")
        return warn(
            f"{found}: LISTEN and session locks end with each transaction",
            "also give a direct address, NOTIFYQ_LISTEN_DSN or App(dsn, listen_dsn=…)",
        )
    return ok("a pooler in session mode is in between" if pids else "no pooler is in between")


async def _pids(context: Context) -> set[int]:
    """The server processes that served the connection; none if there is no pooler."""
    query = "select pg_backend_pid()"
    seen = {await context.value(query)}
    # The process id from the start of the session, which a pooler makes up.
    if seen == {context.connection.get_server_pid()}:
        return set()
    others = [await connect(context.dsn, name="notifyq doctor") for _ in range(2)]
    try:
        # Open transactions occupy server processes: the pooler must then use another one.
        for other in others:
            await other.execute("begin; select 1")
            seen.add(await context.value(query))
    finally:
        for other in others:
            other.terminate()
    return seen


async def check_tls(context: Context) -> Finding:
    """Whether others can read the traffic, or pretend to be the server."""
    row = await context.row("""
        select s.ssl, s.version, host(inet_server_addr()) as server
        from (select pg_backend_pid() as pid) as me
        left join pg_stat_ssl as s on s.pid = me.pid
    """)
    if row["server"] is None or is_local(context.dsn):
        return ok("the server is on this machine")
    options = options_of(context.dsn)
    mode = options.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    if "require" in options.get("channel_binding", "") or options.get("sslrootcert") == "system":
        mode = "verify-full"
    if not row["ssl"]:
        return warn(
            "messages and passwords cross the network unencrypted",
            "give the server a certificate (ssl_cert_file, ssl_key_file), then `alter system set "
            "ssl = on; select pg_reload_conf()`, and set sslmode=verify-full in the DSN",
        )
    if mode != "verify-full":
        return warn(
            f"{row['version']}, but sslmode={mode} does not verify the certificate",
            "set sslmode=verify-full and sslrootcert=FILE in the DSN",
        )
    return ok(f"{row['version']}, and the certificate is verified")


def is_local(dsn: str) -> bool:
    """Whether all hosts of the DSN are this machine, the default host included."""
    given = [host for host, _ in hosts_of(options_of(dsn))]
    hosts = given if any(given) else os.environ.get("PGHOST", "").split(",")
    return all(map(_is_loopback, hosts))


def _is_loopback(host: str) -> bool:
    if host in {"", "localhost"} or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def check_password(context: Context) -> Finding:
    """Whether other users of this machine can read a password."""
    if shown := sorted(await asyncio.to_thread(_showing)):
        return warn(
            f"the arguments of process {', '.join(map(str, shown))} show a password to all users "
            "of this machine",
            "change the password, and use --dsn-file, NOTIFYQ_DSN, a service file or ~/.pgpass "
            "instead of --dsn",
        )
    both = [os.environ.get(name) for name in ("NOTIFYQ_DSN", "NOTIFYQ_DSN_FILE")]
    if all(both) and context.source == "NOTIFYQ_DSN":
        return warn(
            "NOTIFYQ_DSN and NOTIFYQ_DSN_FILE are both set, and the file is not read",
            "unset one of them",
        )
    holds = "contains a password" if has_password(context.dsn) else "contains no password"
    return ok(f"the DSN comes from {context.source} and {holds}")


def _showing() -> list[int]:
    """Processes of notifyq on this machine whose arguments contain a password."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended, or is hidden from this user
            continue
        is_ours = any("notifyq" in argument for argument in arguments[:4])
        dsns = [argument.removeprefix("--dsn=") for argument in arguments]
        if is_ours and any(_LIKE_DSN.search(dsn) and has_password(dsn) for dsn in dsns):
            found.append(int(folder.name))
    return found
