-- Security: the owner, the grants, and views.
\ir security/owner.sql
\ir security/grants.sql
\ir security/views.sql
