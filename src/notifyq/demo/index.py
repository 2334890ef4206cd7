"""The demo's handlers: count the contents of a source file, by `tokenize` and `ast`."""

from __future__ import annotations

import ast
import asyncio
import io
import sysconfig
import threading
import tokenize
import warnings
from collections import Counter
from pathlib import Path

from pydantic import BaseModel

from notifyq import App, Reject

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
MODULES = "demo.modules"
LIBRARY_QUEUE = "demo.library"

app = App()

_parsing = threading.Lock()
"""CPython 3.11 keeps the depth of the tree it builds, and the filters of its warnings, in state
that all threads share: two threads that parse at once make each other fail."""


class Source(BaseModel):
    """A source file, relative to the standard library."""

    path: str


class Index(BaseModel):
    """The contents of a source file, counted."""

    path: str
    lines: int
    tokens: int
    functions: int
    classes: int
    imports: int


@app.handler(MODULES)
def index_module(source: Source) -> Index:
    """Index one file; a file that is not Python is rejected, a missing one fails."""
    return index(source.path)


@app.handler(LIBRARY_QUEUE, lock_duration=1, heartbeat=False)
async def index_library(source: Source) -> int:
    """Index a whole folder at once: that takes longer than its lock, which expires."""
    lines = 0
    for path in source_files(LIBRARY / source.path):
        try:
            lines += index(path).lines
        except Reject:
            continue
        finally:
            # A handler can only be stopped where it awaits.
            await asyncio.sleep(0)
    return lines


def source_files(folder: Path = LIBRARY) -> list[str]:
    """All source files in a folder of the library, without installed packages."""
    return sorted(
        path.relative_to(LIBRARY).as_posix()
        for path in folder.rglob("*.py")
        if "site-packages" not in path.parts and "dist-packages" not in path.parts
    )


def index(path: str) -> Index:
    """Count lines, tokens and definitions of a file of the library.

    Raises Reject if it cannot be decoded or parsed, FileNotFoundError if there is none.
    """
    code = (LIBRARY / path).read_bytes()
    try:
        with _parsing, warnings.catch_warnings():
            # Python warns about escapes in old test data.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            nodes = Counter(
                type(node).__name__ for node in ast.walk(ast.parse(code, filename=path))
            )
        tokens = sum(1 for _ in tokenize.tokenize(io.BytesIO(code).readline))
    except SyntaxError as error:
        raise Reject(f"{path}, line {error.lineno}: {error.msg}") from error
    except (UnicodeDecodeError, ValueError) as error:
        raise Reject(f"{path}: {error}") from error
    return Index(
        path=path,
        lines=code.count(b"\n"),
        tokens=tokens,
        functions=nodes["FunctionDef"] + nodes["AsyncFunctionDef"],
        classes=nodes["ClassDef"],
        imports=nodes["Import"] + nodes["ImportFrom"],
    )
