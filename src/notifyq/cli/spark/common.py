"""What the commands of the pipelines share."""

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from notifyq.cli.options import lake
from notifyq.errors import ConfigurationError


@contextlib.contextmanager
def needs_extra() -> Iterator[None]:
    """Name the packages to install where an import in the block finds no package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "notifyq":
            raise
        raise ConfigurationError(
            f"{error.name} is missing, this needs more packages: pip install 'notifyq[spark]'"
        ) from None


EngineName = Literal["local", "spark"]
LakeOption = Annotated[
    str,
    typer.Option(
        "--lake",
        parser=lake,
        metavar="LAKE",
        help="Folder of the lake, or a URI such as s3://bucket/lake.",
        show_default=False,
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


def storage_of(location: str, options: list[str] | None) -> Any:
    """The storage of a lake with its --storage-option; errors show no value."""
    with needs_extra():
        from notifyq.spark.lake.storage import storage_at

    found: dict[str, str] = {}
    for text in options or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter("a --storage-option is not KEY=VALUE")
        if name in found:
            raise typer.BadParameter(f"--storage-option has {name!r} twice")
        found[name] = value
    return storage_at(location, found)


def make_engine(name: EngineName | None) -> Any:
    """The engine of this name."""
    with needs_extra():
        from notifyq.spark.engine import LocalEngine, SparkEngine
        from notifyq.spark.session import GATEWAY

        if (name or ("spark" if GATEWAY in os.environ else "local")) == "local":
            return LocalEngine()
        from notifyq.spark.session import session

        return SparkEngine(session())
