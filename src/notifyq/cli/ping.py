"""`notifyq ping`: whether the server answers."""

import os

import typer

from notifyq.cli.command import open_database
from notifyq.cli.options import DsnOption, option
from notifyq.database.statements import SESSION


async def ping(
    session: str | None = option(
        "Also require a session of this application_name from this host.", "--as"
    ),
    dsn: DsnOption = None,
) -> None:
    """Exit 0 if the server answers: for health checks."""
    # The search for plugins reads the metadata of every installed package.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    async with open_database(dsn, retry_for=0, check=False) as database:
        found = int(await database.value(SESSION, session or "notifyq"))
    if session and not found:
        typer.echo(
            f"notifyq: the server answers, but no session {session!r} comes from here", err=True
        )
        raise typer.Exit(1)
    typer.echo("ok")
