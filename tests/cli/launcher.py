"""Runs the command line for each request in a process of its own.

The program is made ready once and forked: starting Python for each of a thousand commands would
take many minutes. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from notifyq.cli.main import main, tree

for name in (
    "notifyq.cli.hints", "notifyq.operations.doctor", "notifyq.server",
    "rich.live", "rich.pretty", "uvloop",
):  # fmt: skip
    import_module(name)  # commands import these when they need them


def _command(request: dict[str, Any]) -> int:
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["folder"])
    files = Path(request["files"])
    os.dup2(os.open(files / "in", os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(files / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.argv = ["notifyq", *request["words"]]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:  # noqa: BLE001  what Python itself would do
        traceback.print_exc()
        return 1
    return 0


def _build(words: list[str]) -> None:
    """Build what Typer checks the values of a command with, once for all its forks."""
    command: Any = tree()
    for word in [*words, ""]:
        for parameter in command.params:
            if hasattr(parameter, "get_runtime_param"):  # older versions build it with the command
                parameter.get_runtime_param()
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break


def _serve() -> None:
    # Importing and building a command takes longer than most of them do.
    list(tree().commands.values())
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        request["words"] = [os.fsdecode(bytes.fromhex(word)) for word in request["args"]]
        _build(request["words"])
        child = os.fork()
        if child == 0:
            code = _command(request)
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
