"""Where a setting of the server comes from, and so which statement changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from notifyq.operations.doctor.finding import Look

_RELOAD = "select pg_reload_conf()"


async def change(look: Look, values: Mapping[str, str]) -> str:
    """What gives settings these values for new sessions, as the advice of a finding.

    SQL to be sent as it is; where a person must do something else, too, a sentence.
    """
    found = [await _change(look, name, value) for name, value in values.items()]
    text = "; ".join(statement for each in found for statement in each.statements)
    if others := [it.otherwise for it in found if it.otherwise]:
        return "; ".join([*others, *([f"`{text}`"] if text else [])])
    return f"{text} -- and restart the server" if any(it.restarts for it in found) else text


class _Change(NamedTuple):
    """What changes a setting: statements, or what a person does otherwise."""

    statements: tuple[str, ...] = ()
    otherwise: str = ""
    restarts: bool = False


async def _change(look: Look, name: str, value: str) -> _Change:
    row = await look.row(
        """
        select s.source, s.context, quote_ident(current_user) as role,
          quote_ident(current_database()) as database
        from pg_settings as s
        where s.name = $1
        """,
        name,
    )
    role, database = row["role"], row["database"]
    if row["source"] == "database":
        return _Change((f"alter database {database} reset {name}",))
    if row["source"] == "user":
        return _Change((f"alter role {role} reset {name}",))
    if row["source"] == "database user":
        return _Change((f"alter role {role} in database {database} reset {name}",))
    if row["source"] == "global":
        return _Change((f"alter role all reset {name}",))
    if row["source"] == "client":
        return _Change(otherwise=f"take {name} out of the DSN or PGOPTIONS, where it is given")
    if row["source"] == "command line":
        return _Change(otherwise=f"start the server without --{name}, where it is given")
    system = f"alter system set {name} = {value}"
    if row["context"] == "postmaster":
        return _Change((system,), restarts=True)
    return _Change((system, _RELOAD))
