-- Lake: the archive as files, its roll-ups and reports.
\ir lake/lake.sql
\ir lake/prune.sql
\ir lake/rollup.sql
\ir lake/report.sql
\ir lake/alerts.sql
