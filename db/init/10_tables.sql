-- Tables: types and state. Only migrations change them.
\ir tables/types.sql
\ir tables/message.sql
\ir tables/queue.sql
\ir tables/archive.sql
\ir tables/durable.sql
\ir tables/stream.sql
\ir tables/schedule.sql
\ir tables/transfer.sql
\ir tables/lake.sql
\ir tables/operations.sql
