"""`notifyq dashboard`: queues, messages and health in a browser."""

import socket
from pathlib import Path

import typer

from notifyq.cli.command import open_database, resolve_dsn, run
from notifyq.cli.options import (
    DsnOption,
    HideOption,
    MaskOption,
    flag,
    masks_of,
    option,
    read_secret,
    repeated,
)
from notifyq.cli.output import err, out
from notifyq.config import from_environment, listen_dsn_from_environment
from notifyq.database.encryption.envelopes import required_keys
from notifyq.errors import ConfigurationError
from notifyq.operations.dashboard import LOOPBACK, MISSING, User, Users, create_app
from notifyq.operations.dashboard.users import write_user

_VARIABLE = "NOTIFYQ_DASHBOARD_PASSWORD"
_SECRET = "NOTIFYQ_DASHBOARD_SECRET"  # noqa: S105  the name of a variable


def dashboard(
    host: str = option("Address to listen on.", default="127.0.0.1"),
    port: int = option("Port; 0: a free one.", default=8080, min=0, max=65535),
    allow_writes: bool = flag("--allow-writes", "Allow changes: pause, retry, delete."),
    auth_file: Path | None = option("Users and passwords, written by --add-user.", metavar="FILE"),
    password_file: Path | None = option(
        f"File with one password for all; else {_VARIABLE}.", metavar="FILE"
    ),
    decrypt: bool = flag(
        "--decrypt", "Decrypt messages with the keys in NOTIFYQ_KEYS, for users with write access."
    ),
    mask: MaskOption = None,
    hide_payloads: HideOption = False,
    base_path: str = option("Path prefix at the proxy, like /notifyq.", default="", metavar="PATH"),
    trusted_host: list[str] | None = repeated("A host name that browsers use", metavar="NAME"),
    proxy: str = option(
        "Proxies whose X-Forwarded headers are trusted, as 10.0.0.5,10.1.0.0/16; "
        "none unless given.",
        default="",
        metavar="ADDRESSES",
        envvar="NOTIFYQ_DASHBOARD_PROXY",
        show_default=False,
    ),
    secret_file: Path | None = option(
        f"File with the secret that signs sessions, else {_SECRET}; else a random one, "
        "and a restart ends all sessions.",
        metavar="FILE",
    ),
    interval: float = option(
        "Seconds between updates; notifications update it, too.", default=2.0, min=0.2, max=60
    ),
    add_user: str | None = option(
        "Prompt for a password, write it to --auth-file, and end.", metavar="NAME"
    ),
    viewer: bool = flag("--viewer", "With --add-user: a user without the right to write."),
    dsn: DsnOption = None,
) -> None:
    """Serve queues, messages and workers as web pages.

    It only reads unless --allow-writes is given. Outside of loopback it requires a password.
    """
    if add_user is not None:
        _add(auth_file, User(add_user, may_write=not viewer))
        return
    users = _users(auth_file, password_file)
    try:
        from notifyq.operations.dashboard.serve import (
            announce,
            bind,
            check_host,
            check_proxies,
            serve,
        )
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    check_host(host, is_guarded=users is not None)
    proxies = check_proxies(proxy)
    app = create_app(
        resolve_dsn(dsn),
        users=users,
        open_to_all=users is None,
        allow_writes=allow_writes,
        masks=masks_of(mask, all_payloads=hide_payloads),
        keys=required_keys() if decrypt else None,
        hosts=_hosts(host, trusted_host or []),
        base_path=base_path.rstrip("/"),
        interval=interval,
        listen_dsn=listen_dsn_from_environment(),
        secret=read_secret("--secret-file", secret_file, _SECRET),
    )
    listener = bind(host, port)
    run(_check(dsn))
    out.print(announce(host, listener, base_path, allow_writes=allow_writes))
    serve(app, listener, proxies=proxies)


async def _check(dsn: str | None) -> None:
    """Fail now for a wrong DSN or another version of the schema, and not on each page."""
    async with open_database(dsn, serves=True):
        pass


def _users(auth_file: Path | None, password_file: Path | None) -> Users | None:
    if auth_file is not None:
        if password_file is not None:
            raise typer.BadParameter("--auth-file and --password-file exclude each other")
        return Users.of_file(auth_file)
    if password_file is not None:
        return Users.of_password_file(password_file)
    given = from_environment(_VARIABLE)
    return None if given is None else Users.of_password(given)


def _add(path: Path | None, user: User) -> None:
    if path is None:
        raise typer.BadParameter("--add-user needs --auth-file FILE")
    password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    write_user(path, user, password)
    err.print(f"{path}: {user.name} may {'write' if user.may_write else 'read'}")


def _hosts(host: str, trusted: list[str]) -> tuple[str, ...]:
    own = [] if host in {"0.0.0.0", "::"} else [f"[{host.strip('[]')}]" if ":" in host else host]  # noqa: S104
    names = [] if host in LOOPBACK else [socket.gethostname(), socket.getfqdn()]
    return tuple(dict.fromkeys([*LOOPBACK, *own, *names, *trusted]))
