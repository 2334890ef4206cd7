"""`notifyq audit`: changes made with the dashboard, with `top` and with commands."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from notifyq.cli.command import open_database
from notifyq.cli.options import (
    DsnOption,
    HideOption,
    JsonOption,
    MaskOption,
    instant_option,
    limit_option,
    masks_of,
    option,
)
from notifyq.cli.output import out, print_json, print_rows
from notifyq.operations.monitor import audit_entries


async def audit(
    since: datetime | None = instant_option("Done then or later."),
    actor: str | None = option("By this person."),
    action: str | None = option("As queue.pause, or queue for all that begin so."),
    subject: str | None = option("To this queue, stream, schedule or message."),
    limit: Annotated[int, limit_option(9999)] = 50,
    mask: MaskOption = None,
    hide_payloads: HideOption = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List changes and the people who made them."""
    async with open_database(dsn) as database:
        found = await audit_entries(
            database, actor=actor, action=action, subject=subject, since=since, most=limit + 1,
            masks=masks_of(mask, all_payloads=hide_payloads),
        )  # fmt: skip
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
