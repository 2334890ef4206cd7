"""What the pipelines share on the command line."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def needs_extra(name: str = "spark") -> Iterator[None]:
    """Say in one line what to install where an import in the block finds no package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "notifyq":
            raise
        raise ConfigurationError(
            f"{error.name} is missing, this needs more packages: pip install 'notifyq[{name}]'"
        ) from None
