-- Transfer: from other databases, files and the archive.
\ir transfer/receive.sql
\ir transfer/relay.sql
\ir transfer/load.sql
\ir transfer/load_publish.sql
\ir transfer/replay.sql
