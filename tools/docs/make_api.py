"""Print the reference of package notifyq: the site's page reference/python.md.

python tools/docs/make_api.py          # needs pip install 'notifyq[docs]'

The page begins with docs/reference/python.md. The other texts are the docstrings of what the package
exports, and the comments of the database for what a docstring leaves out. Sections and their order are
below; a public name that is in none of them is an error.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import griffe
import make_sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Pages = Mapping[str, str]

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"

# What has no name in `notifyq` is had as the property of an App that is named.
SECTIONS = {
    "The App": ["app.App"],
    "Handlers": [
        "handlers.build.HandlerOptions",
        "handlers.handler.Handler",
        "handlers.handler.MessageHandler",
        "handlers.handler.BatchHandler",
        "handlers.retries.Retry",
        "handlers.retries.Reject",
        "handlers.retries.Snooze",
        "handlers.signature.Transaction",
    ],
    "Durable work": [
        "durable.steps.Steps",
        "durable.steps.StepTransaction",
        "durable.steps.Signal",
        "durable.current.progress",
        "durable.current.emit",
        "durable.control.Parked",
        "durable.control.LockLostError",
    ],
    "Publishing": [
        "queues.publisher.Publisher",
        "queues.publish_options.Options",
        "models.payload.Json",
        "queues.results.Group",
    ],
    "Results": ["queues.results.Handle"],
    "Workers": ["worker.worker.Worker"],
    "Waiting without handlers": ["worker.inbox.MessageInbox"],
    "Messages": [
        "models.message.Message",
        "models.message.ArchivedMessage",
        "models.message.State",
        "models.message.Status",
        "models.message.Attempt",
        "models.message.Dependency",
    ],
    "The archive": ["archive.reader.Archive", "archive.dead_letters.DeadLetters"],
    "Queues": ["queues.admin.Admin", "queues.policy.Policy"],
    "Schedules": [
        "queues.schedules.Schedules",
        "queues.schedules.Schedule",
        "queues.schedules.ScheduleInfo",
    ],
    "Streams": [
        "streams.admin.Streams",
        "streams.admin.StreamPolicy",
        "handlers.subscriber.Subscriber",
        "handlers.build.SubscriberOptions",
        "streams.subscription.Subscription",
        "streams.subscription.Batch",
        "models.event.Event",
        "models.event.SubscriptionInfo",
    ],
}
_BY_APP = {
    "Publisher": "What `app.publish`, `app.publish_many` and `app.publish_stream` do.",
    "Options": "Options of all that publishes.",
    "Archive": "Had as `app.archive`.",
    "Admin": "Had as `app.admin`.",
    "Schedules": "Had as `app.schedules`.",
    "Streams": "Had as `app.streams`.",
    "MessageInbox": "Had from `app.inbox()`.",
    "Worker": "Had from `app.worker()`.",
}
# Made by something else than their class, so nobody needs to know how.
_MADE = {
    "Handler": "What `@app.handler` makes of a function.",
    "MessageHandler": "What `@app.handler` makes of a function that takes one message.",
    "BatchHandler": "What `@app.handler(…, batch=…)` makes of a function.",
    "Subscriber": "What `@app.subscriber` makes of a function.",
    "Subscription": "Had from `app.subscription()`, which has these options.",
    "Batch": "Had from a `Subscription`, or taken by a subscriber.",
    "Handle": "Had from all that publishes one message; an int.",
    "Steps": "What a handler gets for a parameter of this type.",
    "StepTransaction": "What `steps.transaction(…)` returns.",
}
_WITH_OPTIONS = {"Subscription"}
_NOT_OURS = {"Transaction"}
# Tables with the meaning of fields that have no docstring: a page, and the text before the table.
_TABLES = {
    "HandlerOptions": [("options.md", "option of `handler`")],
    "SubscriberOptions": [("options.md", "option of `subscriber`")],
    "Options": [("sql.md", "### messages.message\n")],
    "Message": [("sql.md", "### messages.message\n")],
    "ArchivedMessage": [("sql.md", "### messages.message_archive\n")],
    "Attempt": [("sql.md", "### messages.attempt\n")],
    "Schedule": [("sql.md", "### messages.schedule\n"), ("sql.md", "### messages.message\n")],
    "ScheduleInfo": [("sql.md", "### messages.schedule\n"), ("sql.md", "### messages.message\n")],
    "Event": [("sql.md", "### messages.event\n"), ("sql.md", "### messages.message\n")],
}
_LONGEST = 92
_HIDDEN = {"args", "from_row", "differences", "values"}


def render(sql: str) -> str:
    """Return the page for the sources beside this folder; `sql` is the reference of the schema."""
    package = griffe.load(
        "notifyq", search_paths=[ROOT / "src"], allow_inspection=False, resolve_aliases=False
    )
    pages = {
        "sql.md": sql,
        **{name: (REFERENCE / name).read_text("utf-8") for name in ("python.md", "options.md")},
    }
    parts = [pages["python.md"].rstrip()]
    shown: set[str] = set()
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            thing = package[name]
            shown.add(thing.name)
            parts += _thing(thing, pages)
    errors = list(_errors(package["errors"]))
    shown |= {error.name for error in errors}
    parts += ["## Errors", *_error_table(errors)]
    if lost := set(package.exports or ()) - shown - {"__version__"}:
        raise ValueError(f"public names without a section: {', '.join(sorted(map(str, lost)))}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _thing(thing: griffe.Object, pages: Pages) -> Iterator[str]:
    yield f"### {thing.name}"
    if thing.name in _NOT_OURS:
        yield (
            "An asyncpg connection with a transaction open: what a handler takes that is "
            "[exactly once](../guides/transactional.md)."
        )
    elif isinstance(thing, griffe.Class):
        how = _BY_APP.get(thing.name) or _MADE.get(thing.name, "")
        is_made = bool(how) and thing.name not in _WITH_OPTIONS
        constructor = thing.members.get("__init__")
        if isinstance(constructor, griffe.Function) and not is_made and not _has_fields(thing):
            yield _signature(thing.name, constructor)
        yield _text(thing)
        yield how
        yield from _members(thing, pages)
    elif isinstance(thing, griffe.Function):
        yield _signature(thing.name, thing)
        yield _text(thing)
    else:
        raise ValueError(f"{thing.path} is neither a class nor a function")


def _members(thing: griffe.Class, pages: Pages) -> Iterator[str]:
    members = {name: it for name, it in _all_members(thing).items() if _is_public(name)}
    if _is_enum(thing):
        values = ", ".join(f"`{_flat(it.value)}`" for it in members.values() if it.is_attribute)
        yield f"One of {values}: see [SQL](sql.md#types)."
    elif _has_fields(thing):
        fields = [it for it in members.values() if isinstance(it, griffe.Attribute)]
        fields = [it for it in fields if "property" not in it.labels]
        fields = [it for it in fields if "ClassVar" not in _flat(it.annotation)]
        lines = [_field(it, thing, pages) for it in fields]
        yield _table("field | type | default | meaning", lines)
    for it in members.values():
        if isinstance(it, griffe.Function) and "property" not in it.labels:
            yield f"#### {thing.name}.{it.name}"
            yield _signature(it.name, it)
            yield _text(it)
        elif isinstance(it, griffe.Attribute) and "property" in it.labels:
            yield f"#### {thing.name}.{it.name}"
            yield f"```py\n{it.name}: {_flat(it.annotation)}\n```"
            yield _text(it)


def _is_enum(thing: griffe.Class) -> bool:
    return any("Enum" in str(base) for base in thing.bases)


def _has_fields(thing: griffe.Class) -> bool:
    """Whether it is a row or a set of options, and not a thing with a state of its own."""
    kinds = {str(base).rpartition(".")[2] for base in thing.bases}
    return thing.name not in _MADE and (
        "dataclass" in thing.labels or bool(kinds & {"TypedDict", "NamedTuple", "_Row", "Schedule"})
    )


def _all_members(thing: griffe.Class) -> dict[str, griffe.Object]:
    """Return the members of a class and of the bases that are ours, those of the bases first."""
    found: dict[str, griffe.Object] = {}
    for base in thing.bases:
        name = str(base).partition("[")[0]
        parent = thing.module.members.get(name)
        if isinstance(parent, griffe.Alias):
            target = parent.target_path.removeprefix("notifyq.")
            parent = thing.package[target] if parent.target_path.startswith("notifyq.") else None
        if isinstance(parent, griffe.Class):
            found |= _all_members(parent)
    return found | {name: it for name, it in thing.members.items() if not it.is_alias}


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name not in _HIDDEN


def _field(it: griffe.Attribute, thing: griffe.Class, pages: Pages) -> str:
    if str(it.value).startswith("option("):
        return f"`{it.name}` | `{_cell(it.annotation)}` | `None` | {_in_cell(_described(it))}"
    default = f"`{_cell(it.value)}`" if it.value is not None else ""
    tables = _TABLES.get(thing.name, ())
    found = (_meaning(pages[name], where, it.name) for name, where in tables)
    meaning = _flat_text(it) or next(filter(None, found), "")
    if not meaning:
        raise ValueError(f"{thing.path}.{it.name}: no docstring and no table has its meaning")
    return f"`{it.name}` | `{_cell(it.annotation)}` | {default} | {meaning}"


def _described(it: griffe.Attribute) -> str:
    """Return the text of notifyq.queues.options.option(), and the value that stands for none."""
    call = ast.parse(str(it.value), mode="eval").body
    assert isinstance(call, ast.Call)
    text = ast.literal_eval(call.args[0])
    none = {"int": "0", "str": '"-"', "Schema": "True"}.get(str(it.annotation).split(" |")[0], "0")
    more = {it.arg: ast.literal_eval(it.value) for it in call.keywords if it.arg == "none"}
    return f"{text[:-1]} ({none}: {more['none']})." if more else str(text)


def _meaning(page: str, where: str, name: str) -> str:
    """Return the last cell of the row of a table that has this name in its first cell."""
    rows = page.split(where)[1].split("\n\n", 3)
    table = next(part for part in rows if "| --- |" in part)
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if name in re.findall(r"`(\w+)`", cells[0]):
            return cells[-1]
    return ""


def _signature(name: str, function: griffe.Function) -> str:
    if function.overloads:
        chosen: Iterable[griffe.Function] = function.overloads
    else:
        chosen = [function]
    lines = dict.fromkeys(_one(name, it) for it in chosen)  # some differ in what is left out here
    return "```py\n" + "\n".join(lines) + "\n```"


def _one(name: str, function: griffe.Function) -> str:
    begin = "async " if "async" in function.labels else ""
    arguments = list(_arguments(function))
    result = _flat(function.returns)
    end = "" if function.name == "__init__" else f" -> {result}"
    line = f"{begin}{name}({', '.join(arguments)}){end}"
    if len(line) > _LONGEST:
        line = f"{begin}{name}(\n    " + ",\n    ".join(arguments) + f",\n){end}"
    return line


def _arguments(function: griffe.Function) -> Iterator[str]:
    has_star = is_positional = False
    for it in function.parameters:
        if it.name == "self":
            continue
        kind = it.kind
        if is_positional and kind is not griffe.ParameterKind.positional_only:
            yield "/"
        is_positional = kind is griffe.ParameterKind.positional_only
        if kind is griffe.ParameterKind.keyword_only and not has_star:
            yield "*"
            has_star = True
        has_star = has_star or kind is griffe.ParameterKind.var_positional
        stars = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "")
        text = f"{stars}{it.name}"
        if it.annotation is not None:
            text += f": {_flat(it.annotation)}"
        if it.default is not None and not stars:
            text += f" = {it.default}" if it.annotation is not None else f"={it.default}"
        yield text
    if is_positional:
        yield "/"


def _flat(expression: object) -> str:
    return " ".join(str(expression).split())


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _cell(expression: object) -> str:
    return _in_cell(_flat(expression))


def _text(thing: griffe.Object) -> str:
    if thing.docstring is None:
        raise ValueError(f"{thing.path} has no docstring")
    return thing.docstring.value


def _flat_text(thing: griffe.Object) -> str:
    return _in_cell(_flat(thing.docstring.value)) if thing.docstring else ""


def _errors(module: griffe.Object) -> Iterator[griffe.Class]:
    for it in module.members.values():
        if isinstance(it, griffe.Class) and it.name.endswith("Error"):
            yield it


def _error_table(errors: list[griffe.Class]) -> Iterator[str]:
    yield (
        "One tree; [Errors](errors.md) has causes and cures. Functions of the database raise those "
        "with an SQLSTATE; on your own connections asyncpg raises the same classes."
    )
    yield _table("error | is a | SQLSTATE | meaning", map(_error, errors))


def _error(error: griffe.Class) -> str:
    parents = ", ".join(f"`{base}`" for base in error.bases)
    state = error.members.get("sqlstate")
    code = str(state.value).strip("'\"") if isinstance(state, griffe.Attribute) else ""
    is_code = code.startswith("NQ")
    return f"`{error.name}` | {parents} | {f'`{code}`' if is_code else ''} | {_flat_text(error)}"


def _table(head: str, lines: Iterable[str]) -> str:
    rule = " | ".join("---" for _ in head.split(" | "))
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


if __name__ == "__main__":
    sys.stdout.write(render(make_sql.page()))
