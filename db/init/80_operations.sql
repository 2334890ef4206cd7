-- Operations: what people on call read.
\ir operations/inspect.sql
\ir operations/diagnose.sql
\ir operations/backlog.sql
\ir operations/sessions.sql
\ir operations/health.sql
\ir operations/search.sql
\ir operations/search_archive.sql
\ir operations/dead_groups.sql
\ir operations/matching.sql
\ir operations/audit.sql
\ir operations/rekey.sql
\ir operations/forget.sql
