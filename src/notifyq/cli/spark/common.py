"""What the commands of the pipelines share."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from notifyq.cli.options import path
from notifyq.errors import ConfigurationError


@contextlib.contextmanager
def needs_extra(name: str = "spark") -> Iterator[None]:
    """Name the packages to install where an import in the block finds no package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "notifyq":
            raise
        raise ConfigurationError(
            f"{error.name} is missing, this needs more packages: pip install 'notifyq[{name}]'"
        ) from None


EngineName = Literal["local", "spark"]
LakeOption = Annotated[
    Path,
    typer.Option(
        "--lake", parser=path, metavar="DIR", help="Folder of the lake.", show_default=False
    ),
]
EngineOption = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="Threads of this process, or a session of Spark; else spark where spark-submit runs "
        "this, else local.",
        show_default=False,
    ),
]


def make_engine(name: EngineName | None) -> Any:
    """The engine of this name."""
    with needs_extra():
        from notifyq.spark.engine import LocalEngine, SparkEngine
        from notifyq.spark.session import GATEWAY

        if (name or ("spark" if GATEWAY in os.environ else "local")) == "local":
            return LocalEngine()
        from notifyq.spark.session import session

        return SparkEngine(session())
