"""`notifyq worker --reload`: the worker again, whenever a Python file below this folder changes."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.cli.arguments import handing_down_dsn
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import timedelta

log = logging.getLogger("notifyq.reload")

_SPARE = 5
"""Seconds beyond its grace until a worker that does not stop is killed."""


def run_and_reload(grace: timedelta) -> None:
    """Keep a worker of this command running, without --reload, until a signal says stop.

    A worker that cannot start, as after a mistake in a file, is tried again at the next change.
    """
    try:
        import watchfiles
    except ImportError as error:
        raise ConfigurationError(
            "--reload needs the package watchfiles: run `pip install 'notifyq[reload]'`"
        ) from error

    def tell(changes: set[tuple[watchfiles.Change, str]]) -> None:
        names = sorted({os.path.relpath(path) for _, path in changes})
        log.info("%s changed: the worker starts again", ", ".join(names))

    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    arguments, handed_down = handing_down_dsn([arg for arg in sys.argv[1:] if arg != "--reload"])
    os.environ.update(handed_down)
    watchfiles.run_process(
        Path.cwd(),
        # -P: a notifyq.py in the current folder is not this package.
        target=shlex.join([sys.executable, "-P", "-m", "notifyq", *arguments]),
        target_type="command",
        watch_filter=watchfiles.PythonFilter(),
        callback=tell,
        debounce=200,
        sigint_timeout=int(grace.total_seconds()) + _SPARE,
    )
