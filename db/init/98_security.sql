-- Security: the owner and the grants.
\ir security/owner.sql
\ir security/grants.sql
