"""`notifyq ping`: whether the server answers."""

import json
import os

import typer

from notifyq.cli.command import open_database
from notifyq.cli.options import DsnOption, JsonOption, option
from notifyq.database.statements import SESSION


async def ping(
    session: str | None = option(
        "Also require a session of this application_name from this host.", "--as"
    ),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Exit 0 if the server answers: for health checks."""
    # The search for plugins reads the metadata of every installed package.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    async with open_database(dsn, retry_for=0, check=False) as database:
        found = int(await database.value(SESSION, session or "notifyq"))
    is_well = not session or found > 0
    if as_json:
        text = json.dumps({"ok": is_well, "sessions": found})
        typer.echo(text)
        if not is_well:
            raise typer.Exit(1)
        return
    if not is_well:
        typer.echo(
            f"notifyq: the server answers, but no session {session!r} comes from here", err=True
        )
        raise typer.Exit(1)
    typer.echo("ok")
