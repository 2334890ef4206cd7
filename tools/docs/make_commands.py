"""Print the reference of the commands, from their help: the site's page reference/commands.md.

python tools/docs/make_commands.py

The head of the page and the examples of each command are those of docs/reference/commands.md.
"""

from __future__ import annotations

import enum
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer.main

from notifyq.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXAMPLES = Path(__file__).parents[2] / "docs/reference/commands.md"

_EVERYWHERE = {
    "--dsn": "The database.",
    "--json": "Print JSON, one object a line, where a command prints rows.",
    "--help": "Show a command and its options.",
}


def render() -> str:
    """Return the page for the command line that is installed."""
    root: Any = typer.main.get_command(app)
    lines = [f"| `{name}` | {meaning} |" for name, meaning in _EVERYWHERE.items()]
    lines += [f"| {_option(it)} | {_meaning(it)} |" for it in root.params if not it.hidden]
    head, _, blocks = EXAMPLES.read_text("utf-8").partition("\n## ")
    examples: dict[str, list[str]] = {}
    for line in re.findall(r"^.*\bnotifyq .*$", blocks, re.MULTILINE):
        name = re.search(r"\bnotifyq ([\w-]+)", line)[1]
        examples.setdefault(name, []).append(line)
    parts = [head.rstrip(), "| everywhere | meaning |\n| --- | --- |\n" + "\n".join(lines)]
    for name, command in sorted(root.commands.items()):
        lines_of_it = "\n".join(examples.pop(name))
        parts += _command((name,), command, f"```sh\n{lines_of_it}\n```")
    if examples:
        raise ValueError(f"examples of commands that are gone: {', '.join(examples)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _command(names: tuple[str, ...], command: Any, examples: str = "") -> Iterator[str]:
    if command.hidden:
        return
    yield f"{'#' * (len(names) + 1)} {' '.join(names)}"
    shown = [it for it in command.params if not getattr(it, "hidden", False)]
    arguments = [it for it in shown if it.param_type_name == "argument"]
    options = [it for it in shown if it.param_type_name == "option"]
    children = getattr(command, "commands", {})
    usage = ["notifyq", *names, *map(_usage, arguments)]
    named = {name for it in options for name in it.opts}
    usage += [f"[{name}]" for name in ("--dsn DSN", "--json") if name.split()[0] in named]
    if any(not named & set(_EVERYWHERE) for named in (set(it.opts) for it in options)):
        usage.append("[OPTION...]")
    if children:
        usage.append("[COMMAND]")
    yield f"```text\n{' '.join(usage)}\n```"
    yield _paragraphs(command.help)
    yield examples
    yield _table(
        "argument | meaning", (f"`{_cell(_name(it))}` | {_meaning(it)}" for it in arguments)
    )
    own = [it for it in options if not set(it.opts) & set(_EVERYWHERE)]
    yield _table("option | default | meaning", map(_row, own))
    for name, child in children.items():
        yield from _command((*names, name), child)


def _usage(argument: Any) -> str:
    name = _name(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _name(parameter: Any) -> str:
    return (parameter.metavar or parameter.name.upper()).strip("[]")


def _row(option: Any) -> str:
    default = option.default
    is_none = default is None or default is False or default in ((), [])
    if is_none or callable(default) or not option.show_default:
        shown = "required" if option.required else ""
    elif default is True and option.secondary_opts:
        shown = f"`{option.opts[0]}`"
    else:
        shown = f"`{default.value if isinstance(default, enum.Enum) else default}`"
    return f"{_option(option)} | {_cell(shown)} | {_meaning(option)}"


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if getattr(option, "is_flag", False) or option.count:
        return names
    value = _cell(option.metavar or "|".join(_choices(option)) or "VALUE")
    return f"{names} `{value}`" + (" …" if option.multiple else "")


def _choices(option: Any) -> Iterable[str]:
    """Return what an option may be, whichever Typer it is: only newer ones keep annotations."""
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(it.value) for it in kind]
    if get_origin(kind) is Literal:
        return [str(it) for it in get_args(kind)]
    return [str(it) for it in getattr(getattr(option, "type", None), "choices", ())]


def _meaning(parameter: Any) -> str:
    return _cell(" ".join((parameter.help or "").split()))


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _table(head: str, lines: Iterable[str]) -> str:
    rows = list(lines)
    rule = " | ".join("---" for _ in head.split(" | "))
    return "\n".join(f"| {line} |" for line in (head, rule, *rows)) if rows else ""


if __name__ == "__main__":
    sys.stdout.write(render())
