"""Statements about the session itself: whose it is, and whether it may write.

Sent by the simple protocol, which prepares nothing: the answer is the number of rows in the tag.
"""

IS_MINE = "select where pg_backend_pid() = {pid}"
"""One row where the server process is the one that the connection was told of."""
IS_NAMED = "select from pg_prepared_statements where name = '{name}'"
FORGET = "deallocate {name}"
IS_READ_ONLY = "select where current_setting('transaction_read_only') = 'on'"
"""One row on a standby, and where writing was turned off."""
IS_UNFIT = """
select where current_setting('default_transaction_isolation') <> 'read committed'
  or current_setting('statement_timeout') <> '0'
"""
"""One row where the session has not the settings that ours ask for."""
IDENTITY = "select current_database() as name, system_identifier from pg_control_system()"
"""The same for two sessions where they work on the same database."""
