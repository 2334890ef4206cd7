"""Statements about the session itself: which process serves it, and whether it may write.

The simple protocol sends them, as it prepares nothing: the number of rows in the tag is the answer.
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
