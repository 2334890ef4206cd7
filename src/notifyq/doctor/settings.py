"""Where a setting of the server comes from, and so which statement changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from notifyq.doctor.finding import Look

_RELOAD = "select pg_reload_conf()"


async def change(look: Look, name: str, value: str) -> str:
    """What gives a setting this value for new sessions, as statements to be sent as they are."""
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
        return f"alter database {database} reset {name}"
    if row["source"] == "user":
        return f"alter role {role} reset {name}"
    if row["source"] == "database user":
        return f"alter role {role} in database {database} reset {name}"
    if row["source"] == "global":
        return f"alter role all reset {name}"
    if row["source"] == "client":
        return f"take {name} out of the DSN or PGOPTIONS, where it is given"
    if row["source"] == "command line":
        return f"start the server without --{name}, where it is given"
    system = f"alter system set {name} = {value}"
    if row["context"] == "postmaster":
        return f"{system}; and restart the server"
    return f"{system}; {_RELOAD}"
