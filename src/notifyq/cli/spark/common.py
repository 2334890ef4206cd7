"""What the pipelines share on the command line."""

from __future__ import annotations

import contextlib
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.output import path
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


class EngineName(enum.StrEnum):
    """Who runs the tasks of a pipeline."""

    LOCAL = "local"
    SPARK = "spark"


LakeOption = Annotated[
    Path,
    typer.Option(
        "--lake", parser=path, metavar="DIR", help="Folder of the lake.", show_default=False
    ),
]
EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="Threads of this process, or a session of Spark.")
]


def make_engine(name: EngineName) -> Any:
    """The engine of this name."""
    from notifyq.spark.engine import LocalEngine, SparkEngine

    if name is EngineName.LOCAL:
        return LocalEngine()
    from notifyq.spark.session import session

    return SparkEngine(session())
