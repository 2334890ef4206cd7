-- Maintenance: work that no call of a client does.
\ir maintenance/orphans.sql
\ir maintenance/maintain.sql
\ir maintenance/cron.sql
\ir maintenance/adopt.sql
