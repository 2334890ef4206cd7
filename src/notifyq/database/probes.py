"""Statements about the session itself: which process serves it, and what it may do.

The simple protocol sends those without arguments, as it prepares nothing: the number of rows in the
tag is the answer.
"""

IS_MINE = "select where pg_backend_pid() = {pid}"
"""One row where the server process is the one that the connection was opened with."""
IS_NAMED = "select from pg_prepared_statements where name = '{name}'"
FORGET = "deallocate {name}"
IS_READ_ONLY = "select where current_setting('transaction_read_only') = 'on'"
"""One row on a standby, and where the default is read-only."""
IS_UNFIT = """
select where current_setting('default_transaction_isolation') <> 'read committed'
  or current_setting('statement_timeout') <> '0'
"""
"""One row where the session lacks the settings that notifyq needs."""
IDENTITY = "select current_database() as name, system_identifier from pg_control_system()"
"""Equal for two sessions of the same database."""
ROLES_OF_FUNCTION = """
select r.rolname::text as role
from pg_catalog.pg_roles as r
where r.rolname like 'notifyq\\_%' and exists (
  select from pg_catalog.pg_proc as p
  join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
  where p.proname = $1
    and n.nspname in ('messages', 'notifyq')
    and has_schema_privilege(n.oid, 'usage')
    and has_function_privilege(r.oid, p.oid, 'execute')
)
"""
"""Which of our roles may call a function that the session may not; no row for other objects."""
