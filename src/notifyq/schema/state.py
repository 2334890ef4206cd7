"""The state of a database before an installation: version, owner and privileges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import installs
from notifyq.errors import AccessDeniedError, SchemaError

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

State = dict[str, Any]
"""A row of the query below, and the version in `installed`."""

# From the catalogs, which every role may read; it may lack privileges on the schema.
_STATE = """
select
  current_setting('server_version') as server_version,
  current_setting('server_version_num')::integer as server_number,
  case family(inet_server_addr())
    when 4 then format('%s:%s', host(inet_server_addr()), inet_server_port())
    when 6 then format('[%s]:%s', host(inet_server_addr()), inet_server_port())
    else 'a local socket' end as server,
  current_database()::text as database,
  current_user::text as role,
  (select r.rolsuper from pg_roles as r where r.rolname = current_user) as is_superuser,
  has_database_privilege(current_database(), 'create') as may_create,
  format('grant create on database %I to %I', current_database(), current_user) as remedy,
  pg_is_in_recovery() as is_standby,
  current_setting('transaction_read_only')::boolean as is_read_only,
  pg_get_userbyid(n.nspowner)::text as owner,
  (select r.rolcanlogin from pg_roles as r where r.oid = n.nspowner) as owner_logs_in,
  pg_has_role(n.nspowner, 'usage') as is_owner,
  to_regnamespace('notifyq') is null as needs_helpers,
  exists (select from pg_class as c where c.relnamespace = n.oid)
    or exists (select from pg_proc as p where p.pronamespace = n.oid)
    or exists (select from pg_type as t where t.typnamespace = n.oid) as is_used,
  exists (
    select from pg_class as c
    join pg_attribute as a on a.attrelid = c.oid and a.attname = 'installed_at'
    where c.relnamespace = to_regnamespace('notifyq') and c.relname = 'schema_version'
  ) as is_ours
from (select) as once
left join pg_namespace as n on n.nspname = 'messages'
"""


async def read_state(connection: Connection) -> State:
    """Read the state; raise for an old server, or a schema that is not of notifyq."""
    record = await connection.fetchrow(_STATE)
    state: State = dict(record or {}, schema=installs.of(connection))
    _check_server(state)
    state["installed"] = None
    if state["is_ours"]:
        try:
            state["installed"] = await connection.fetchval(
                "select max(s.version) from notifyq.schema_version as s"
            )
        except asyncpg.InsufficientPrivilegeError as error:
            raise _not_the_owner(state) from error
    return state


def _check_server(state: State) -> None:
    if state["server_number"] < 150000:
        raise SchemaError(
            f"PostgreSQL 15 or newer is needed, this is {state['server_version'].split()[0]}"
        )
    if state["is_used"] and not state["is_ours"]:
        raise SchemaError(
            f"schema {state['schema']} in database {state['database']} is not that of notifyq: "
            "rename it, or use another database"
        )


def check_rights(state: State) -> None:
    """Raise errors that would otherwise occur within a file."""
    if state["is_standby"]:
        raise SchemaError(f"{state['server']} is a read-only standby: connect to its primary")
    if state["is_read_only"]:
        raise SchemaError(
            "transactions are read-only here: check default_transaction_read_only of "
            f"{state['role']} and of database {state['database']}"
        )
    if state["owner"] is None and not state["may_create"]:
        raise AccessDeniedError(
            f"user {state['role']} may not create schema {state['schema']} in database "
            f"{state['database']}: run as its owner or `{state['remedy']}`"
        )
    if state["owner"] is not None and not state["is_owner"]:
        raise _not_the_owner(state)
    own = installs.inner(state["schema"])
    if state["needs_helpers"] and not state["may_create"]:
        raise AccessDeniedError(
            f"user {state['role']} may not create schema {own} in database {state['database']}: "
            f"an administrator must run `create schema {own} authorization {state['owner']}`"
        )


def _not_the_owner(state: State) -> AccessDeniedError:
    return AccessDeniedError(
        f"user {state['role']} may not change schema {state['schema']} in database "
        f"{state['database']}: "
        f"run as its owner, {state['owner']}"
        + ("" if state["owner_logs_in"] else ": as a superuser, or as a member of that role")
    )
