"""`notifyq rekey`: encrypt again, by the first key, what older keys have encrypted."""

from typing import Annotated

import typer

from notifyq.archive import rekey as again
from notifyq.cli.command import noting, open_database
from notifyq.cli.hints import require_known
from notifyq.cli.options import DsnOption
from notifyq.cli.output import out
from notifyq.cli.progress import Progress
from notifyq.database.encryption.envelopes import required_keys

QueueArgument = Annotated[
    str | None, typer.Argument(metavar="[QUEUE]", help="A queue or stream; all without it.")
]


async def rekey(queue: QueueArgument = None, dsn: DsnOption = None) -> None:
    """Encrypt again what older keys have encrypted.

    The first key does it, for live messages, the archive and events, in steps: start a run that was
    stopped again. Files of a lake keep their keys.
    """
    keys = required_keys()
    done, left, entry = 0, 0, None
    async with open_database(dsn, keys=keys) as database:
        await require_known(database, queue)
        with Progress("texts read", total=None, unit="texts") as progress:
            async for step in again.steps(database, keys, queue):
                if step.texts:
                    subject = queue or "all"
                    async with noting(database, "queue.rekey", subject, entry=entry) as act:
                        count = await again.write(act, step)
                        act.note(found=len(step.texts), done=count)
                    entry = act.entry
                    done, left = done + count, left + len(step.texts) - count
                progress.advance(step.read)
    out.print(f"{done} texts encrypted again")
    if left:
        out.print(f"{left} have changed meanwhile: run it once more")
        raise typer.Exit(1)
