"""For Alembic: autogenerate leaves our schemas alone, and a revision runs a script of ours.

context.configure(..., include_schemas=True, include_name=include_name,
                  include_object=include_object)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from alembic.operations import Operations

from notifyq.database.installs import inner, schema_of

__all__ = ["include_name", "include_object", "run_script"]

_SCHEMAS = frozenset({"messages", "notifyq"})
"""Those of NOTIFYQ_SCHEMA are ours as well."""
_TRANSACTION = re.compile(r"^(?:begin|commit);$\n?", re.MULTILINE)
_CHANGED = ("search_path", "lock_timeout", "statement_timeout")
"""Settings that a script changes until the end of its transaction, which is not its own here."""


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Whether autogenerate reads this object: not one of our schemas, nor one inside of them."""
    schema = name if type_ == "schema" else parent_names.get("schema_name")
    return not _is_ours(schema)


def include_object(
    object_: Any,
    _name: str | None,
    _type: str,
    _reflected: bool,  # noqa: FBT001  Alembic calls it so
    _compare_to: Any,
) -> bool:
    """Whether autogenerate compares this object: none of our schemas, such as a mapped table."""
    table = getattr(object_, "table", object_)
    return not _is_ours(getattr(table, "schema", None))


def _is_ours(schema: str | None) -> bool:
    chosen = schema_of(None)
    return schema in _SCHEMAS or schema in {chosen, inner(chosen)}


def run_script(op: Operations | Any, text: str) -> None:
    """Run the script of `notifyq init --sql` or `notifyq migrate --sql` in this revision.

    It runs in the transaction of the revision, whose end is the end of the script. With
    `alembic upgrade --sql` it becomes a part of the output. `op` is that of the revision.
    """
    before = "".join(_copying(name, f"notifyq.before_{name}") for name in _CHANGED)
    after = "".join(_copying(f"notifyq.before_{name}", name) for name in _CHANGED)
    text = before + _TRANSACTION.sub("", text) + after
    if op.get_context().as_sql:
        op.get_context().impl.static_output(text)
        return
    # Without parameters: a driver would take a % in it for a placeholder.
    bind, options = op.get_bind(), {"no_parameters": True}
    bind.exec_driver_sql("select 1")  # opens the transaction
    raw: Any = bind.connection.dbapi_connection
    if hasattr(raw, "run_async"):  # SQLAlchemy would prepare it, and asyncpg prepares no script
        raw.run_async(lambda connection: connection.execute(text))
    else:
        bind.exec_driver_sql(text, execution_options=options)


def _copying(source: str, target: str) -> str:
    return f"select set_config('{target}', current_setting('{source}'), true);\n"
