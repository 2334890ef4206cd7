-- Archive: finished messages, how long they are kept, and dead ones.
\ir archive/partitions.sql
\ir archive/retention_policy.sql
\ir archive/retention.sql
\ir archive/list.sql
\ir archive/dead.sql
\ir archive/redrive.sql
