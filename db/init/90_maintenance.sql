-- Maintenance: what has to happen when nobody calls.
\ir maintenance/maintain.sql
\ir maintenance/cron.sql
\ir maintenance/adopt.sql
