-- Queue: publish, claim, settle, administer.
\ir queue/checks.sql
\ir queue/publish.sql
\ir queue/insert.sql
\ir queue/publish_unique.sql
\ir queue/typed.sql
\ir queue/find.sql
\ir queue/claim.sql
\ir queue/settle.sql
\ir queue/finish.sql
\ir queue/attempts.sql
\ir queue/dependencies.sql
\ir queue/volatile.sql
\ir queue/owned.sql
\ir queue/result.sql
\ir queue/admin.sql
\ir queue/policy.sql
\ir queue/text.sql
