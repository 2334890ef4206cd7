"""`notifyq server`: the development server from the command line."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import typer

from notifyq.cli.options import flag, option
from notifyq.server import development

server = typer.Typer(
    name="server",
    help="Start and stop a private PostgreSQL for development.",
    no_args_is_help=True,
)


@server.command()
def start() -> None:
    """Start the server. It is created at first use and runs until `notifyq server stop`."""
    running = development()
    running.start(detached=True)
    typer.echo(f"PostgreSQL is running (pid {running.running}), its data is in {running.directory}")
    typer.echo("Commands find it. For your own programs, in each terminal:")
    typer.echo('export NOTIFYQ_DSN="$(notifyq server url)"')


@server.command()
def stop(
    delete: bool = flag("--delete", "Remove all its data, too."),
    yes: bool = option("Delete without asking.", "--yes", "-y", default=False),
) -> None:
    """Stop the server."""
    running = development()
    if delete:
        if not yes and not sys.stdin.isatty():
            raise typer.BadParameter("--delete needs an answer before it deletes data: give --yes")
        if not yes:
            typer.confirm(f"Remove all data in {running.directory}?", abort=True)
        running.delete()
        typer.echo(f"stopped, and the data in {running.directory} is gone")
        return
    running.stop(force=True)
    typer.echo("stopped")


@server.command()
def status(
    as_json: bool = flag("--json", "Print one JSON object."),
) -> None:
    """Show whether the server runs, and where its data is. Exit code 3: it is stopped."""
    server = development()
    state = server.state
    facts = {
        "status": "running" if state else "stopped",
        "version": state and state.starter.version,
        "pid": state and state.pid,
        "port": state and state.port,
        "directory": str(server.directory),
        "bytes": _size(server.directory),
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            if value is not None:
                typer.echo(f"{name:<10} {value}")
    if state is None:
        raise typer.Exit(3)


@server.command()
def url() -> None:
    """Print the address of the running server, password included."""
    running = development()
    if running.running is None:
        typer.echo("the server is stopped: run `notifyq server start`", err=True)
        raise typer.Exit(1)
    typer.echo(running.dsn)


def _size(directory: Path) -> int:
    """Return the bytes of all files below; a running server adds and removes files meanwhile."""
    total = 0
    for folder, _, files in os.walk(directory):
        for file in files:
            with suppress(FileNotFoundError):
                total += Path(folder, file).lstat().st_size
    return total
