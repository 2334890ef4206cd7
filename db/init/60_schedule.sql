-- Schedule: messages that cron expressions publish.
\ir schedule/cron.sql
\ir schedule/cron_next.sql
\ir schedule/schedules.sql
