"""Every statement that drivers and tasks send."""

from __future__ import annotations

from typing import Final

# The data source: reading.

ARCHIVE_TABLES: Final = """
select c.relname::text, pg_relation_size(c.oid) / current_setting('block_size')::bigint
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = 'messages.message_archive'::regclass
order by c.relname
"""
SNAPSHOT: Final = "select pg_current_snapshot()::text"
READ_ARCHIVE: Final = "select {columns} from messages.message_archive as r where {condition}"
