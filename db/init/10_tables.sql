-- Tables: types and state. An upgrade changes them by migrations only.
\ir tables/types.sql
\ir tables/message.sql
\ir tables/queue.sql
\ir tables/archive.sql
\ir tables/stream.sql
\ir tables/schedule.sql
\ir tables/transfer.sql
\ir tables/lake.sql
\ir tables/operations.sql
