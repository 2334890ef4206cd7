-- Common: functions that several chapters use.
\ir common/checks.sql
\ir common/statistics.sql
\ir common/notify.sql
\ir common/access.sql
\ir common/reading.sql
\ir common/positions.sql
\ir common/json_schema.sql
\ir common/filters.sql
\ir common/constraints.sql
