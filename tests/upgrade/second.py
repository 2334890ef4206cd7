"""A second version of the schema, which only the tests have: one change of each kind."""

from __future__ import annotations

import re
from pathlib import Path

from notifyq.database.statements import SCHEMA_VERSION

NEXT = SCHEMA_VERSION + 1
GONE = "messages.release_owned(interval)"
"""A function that the second version does not have."""
RENEWED = ("messages.claim", "messages.publish", "messages.dead_count")
"""Functions that have one more argument there."""

_LABEL = """
create table if not exists messages.label (
  name text not null,
  made_at timestamptz not null default clock_timestamp(),
  constraint label_name_pk primary key (name)
);
comment on table messages.label is 'Labels of queues.';
"""
_OF_QUEUES = "comment on column messages.queue.label is 'What people call it.';\n"
_MIGRATION = """\
-- Labels: queues have a label and a patience, messages have a note.
-- breaking: no
-- needs: owner

drop function {gone};
{label}
insert into messages.label (name) select upper(q.name) from messages.queue as q;

alter table messages.queue
  add column label text,
  add column patience interval not null default interval '1 minute';
update messages.queue as q set label = upper(q.name), patience = q.retention / 2;
{of_queues}
-- The child first: it may be one, or be separate.
alter table notifyq.message_unlogged add column note text;
alter table messages.message add column note text;
"""


def write_second(root: Path, *, serves: int = SCHEMA_VERSION) -> Path:
    """Turn the files below `root` into those of the second version; return its migration."""
    gone = [GONE, *(_add_argument(root, name) for name in RENEWED)]
    _drop(root)
    _add_columns(root)
    set_version(root, NEXT, serves=serves)
    path = root / f"migrations/{NEXT:04}_labels.sql"
    path.write_text(
        _MIGRATION.format(gone=",\n  ".join(gone), label=_LABEL, of_queues=_OF_QUEUES),
        encoding="ascii",
    )
    return path


def set_version(root: Path, version: int, *, serves: int = SCHEMA_VERSION) -> None:
    """Let the init files be those of a version that serves packages from another one on."""
    path = root / "init/bootstrap/schema.sql"
    text = path.read_text(encoding="ascii")
    for name, number in (("messages.version", version), ("notifyq.oldest_client", serves)):
        pattern = rf"(function {re.escape(name)}\(\).*?  select )\d+;"
        text, count = re.subn(pattern, rf"\g<1>{number};", text, count=1, flags=re.DOTALL)
        assert count == 1, name
    path.write_text(text, encoding="ascii")


def replace(root: Path, pattern: str, new: str) -> re.Match[str]:
    """Replace the one match in the init files; return what was there."""
    matches = [
        (path, text, found)
        for path in sorted((root / "init").rglob("*.sql"))
        for text in [path.read_text(encoding="ascii")]
        for found in re.finditer(pattern, text, re.DOTALL)
    ]
    [(path, text, match)] = matches
    path.write_text(text[: match.start()] + new + text[match.end() :], encoding="ascii")
    return match


def _add_argument(root: Path, name: str) -> str:
    """Give a function one more argument, the last; return what its signature was."""
    head = rf"create or replace function {name}\((?P<arguments>[^;]*?)\n\)\n  returns"
    found = replace(root, head, "(HEAD)")
    head = f"create or replace function {name}({found['arguments']},\n  note text default null"
    replace(root, r"\(HEAD\)", f"{head}\n)\n  returns")
    replace(root, rf"comment on function {name}(\([^)]*\))? is", f"comment on function {name} is")
    types = re.findall(r"^  \w+ (.*?)(?: default .*?)?,?$", found["arguments"], re.MULTILINE)
    return f"{name}({', '.join(types)})"


def _drop(root: Path) -> None:
    name = GONE.partition("(")[0]
    comment = rf"comment on function {name} is.*?;\n"
    replace(root, rf"create or replace function {name}\((?:(?!create or).)*?{comment}", "")
    # In the table of grants.
    replace(root, r"finish_owned release_owned", "finish_owned")


def _add_columns(root: Path) -> None:
    columns = "  label text,\n  patience interval not null default interval '1 minute',\n"
    of_queues = replace(root, r"  constraint queue_name_pk primary key", "(QUEUE)")
    replace(root, r"\(QUEUE\)", columns + of_queues[0])
    comment = replace(root, r"comment on table messages\.queue is", "(COMMENT)")
    replace(root, r"\(COMMENT\)", _OF_QUEUES + comment[0])
    of_messages = replace(root, r"  constraint message_id_pk primary key", "(MESSAGE)")
    replace(root, r"\(MESSAGE\)", "  note text,\n" + of_messages[0])
    (root / "init/tables/label.sql").write_text(f"-- Label: labels.\n{_LABEL}", encoding="ascii")
    chapter = root / "init/10_tables.sql"
    with chapter.open("a", encoding="ascii") as file:
        file.write("\\ir tables/label.sql\n")
