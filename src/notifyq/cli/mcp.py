"""`notifyq mcp`: tools for an agent, over standard input and output."""

import signal
import sys

from notifyq.cli.arguments import dsn_source
from notifyq.cli.command import open_database
from notifyq.cli.logs import configure_logging
from notifyq.cli.options import DsnOption, HideOption, MaskOption, flag, masks_of
from notifyq.config import listen_dsn_from_environment


async def mcp(
    write: bool = flag("--write", "Also retry dead messages, pause and resume queues."),
    mask: MaskOption = None,
    hide_payloads: HideOption = False,
    dsn: DsnOption = None,
) -> None:
    """Serve queues and messages to an agent, over stdio.

    It speaks the Model Context Protocol until its input ends, and works as the role of the DSN. It
    only reads unless --write is given; each change has a row in the audit.
    """
    configure_logging("warning")
    masks = masks_of(mask, all_payloads=hide_payloads)
    from notifyq.operations.mcp import create_server

    async with open_database(dsn, pool_size=2) as database:
        server = create_server(
            database,
            masks,
            allow_writes=write,
            dsn_from=dsn_source(sys.argv[1:]),
            listen_dsn=listen_dsn_from_environment(),
        )
        # The library reads the input in a thread, which an orderly end would wait for.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        await server.run_stdio_async()
