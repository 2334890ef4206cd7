-- Bootstrap: extensions, schemas, roles, and bounds that tables need.
\ir bootstrap/extensions.sql
\ir bootstrap/schema.sql
\ir bootstrap/roles.sql
\ir bootstrap/bounds.sql
