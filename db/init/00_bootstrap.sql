-- Bootstrap: extensions, the schema, its roles, and what tables need to be made.
\ir bootstrap/extensions.sql
\ir bootstrap/schema.sql
\ir bootstrap/roles.sql
\ir bootstrap/bounds.sql
