"""`notifyq audit`: what people have done, with the dashboard, with `top` and from here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from notifyq.cli.masking import HideOption, MaskOption, masks_of
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    instant,
    open_database,
    out,
    print_json,
    print_rows,
    run,
)
from notifyq.operations.monitor import AuditEntry, audit_entries


def audit(
    since: Annotated[
        Any, typer.Option(parser=instant, metavar="INSTANT", help="Done then or later.")
    ] = None,
    actor: Annotated[str | None, typer.Option(help="By this person.")] = None,
    action: Annotated[
        str | None, typer.Option(help="As queue.pause, or queue for all that begin so.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="To this queue, stream, schedule or message.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=9999, help="At most.")] = 50,
    mask: MaskOption = None,
    hide_payloads: HideOption = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who did what, the latest first: with the dashboard, `top` and the command line."""

    async def read() -> list[AuditEntry]:
        async with open_database(dsn) as database:
            return await audit_entries(
                database, actor=actor, action=action, subject=subject, since=since, most=limit + 1,
                masks=masks_of(mask, all_payloads=hide_payloads),
            )  # fmt: skip

    found = run(read())
    rows = [asdict(it) for it in found[:limit]]
    if as_json:
        for row in rows:
            print_json(row)
        return
    names = ("acted_at", "actor", "action", "subject", "origin", "details")
    shown = [{name: row[name] for name in names} for row in rows]
    print_rows(shown, as_json=False, empty="nobody has changed anything")
    if len(found) > limit:
        out.print("there is more: use --limit")
