#!/bin/sh
# Creates the database at the first start and the logins at each, then becomes the server.
set -eu

: "${POSTGRES_DB:=notifyq}"
: "${NOTIFYQ_INIT_FILES:=/docker-entrypoint-initdb.d}"
: "${NOTIFYQ_LOGINS:=/usr/local/share/notifyq/logins.psql}"
unfinished=$PGDATA.unfinished

die() {
  printf 'notifyq-db: %s\n' "$*" >&2
  exit 1
}

create_cluster() {
  # Sessions inside the container are known by their user; everything over TCP needs the password.
  printf '%s\n' "$POSTGRES_PASSWORD" | initdb -D "$unfinished" -U postgres --pwfile=/dev/stdin \
    --auth-local=peer --auth-host=scram-sha-256 --data-checksums \
    --encoding=UTF8 --locale=C.UTF-8 >/dev/null
  echo 'host all all all scram-sha-256' >>"$unfinished/pg_hba.conf"
  # Background workers need no login, so pg_cron works beside scram without a stored password.
  cat >>"$unfinished/postgresql.conf" <<CONF
listen_addresses = '*'
shared_preload_libraries = 'pg_cron'
cron.database_name = '$POSTGRES_DB'
cron.use_background_workers = on
cron.log_statement = off
max_worker_processes = 24
CONF
}

# with_server FOLDER FUNCTION: a server that only FUNCTION reaches.
with_server() {
  # No TCP: a health check or a worker must not meet a half-made schema. No cron: a schedule of
  # one file must not fire before the functions of a later file exist. Recovery takes its time.
  pg_ctl -D "$1" -w -t 86400 -o "-c listen_addresses='' -c cron.launch_active_jobs=off" start \
    >/dev/null
  "$2"
  pg_ctl -D "$1" -w -t 86400 -m fast stop >/dev/null
}

run_file() {
  PGOPTIONS='-c client_min_messages=warning' \
    psql -X -q -v ON_ERROR_STOP=1 -d "$POSTGRES_DB" -f "$1" >/dev/null
}

run_init_files() {
  createdb "$POSTGRES_DB"
  for file in "$NOTIFYQ_INIT_FILES"/*.sql; do
    [ -e "$file" ] || continue
    echo "notifyq-db: $file"
    run_file "$file"
  done
}

# At each start: a password that was changed in the environment is changed here, and a volume of an
# older image gets its logins.
make_logins() {
  run_file "$NOTIFYQ_LOGINS"
}

initialise() {
  [ -n "${POSTGRES_PASSWORD:-}" ] || die 'the first start needs POSTGRES_PASSWORD'
  # What an interrupted first start left behind.
  rm -rf "$unfinished"
  create_cluster
  with_server "$unfinished" run_init_files
  # Only a complete database ever gets the final name.
  mv "$unfinished" "$PGDATA"
  sync "$(dirname "$PGDATA")"
}

check_version() {
  [ -s "$PGDATA/PG_VERSION" ] || die "$PGDATA is not a database directory"
  version=$(cat "$PGDATA/PG_VERSION")
  [ "$version" = "$PG_MAJOR" ] || die "the volume holds a database of PostgreSQL $version, this" \
    "image is PostgreSQL $PG_MAJOR: dump it with the old image and restore it into a new volume"
}

# A shell that is process 1 ignores signals it has no trap for.
trap 'exit 130' INT TERM
[ -e "$PGDATA" ] || initialise
check_version
with_server "$PGDATA" make_logins
# The server has no use for them.
unset POSTGRES_PASSWORD NOTIFYQ_PUBLISHER_PASSWORD NOTIFYQ_WORKER_PASSWORD NOTIFYQ_READER_PASSWORD \
  NOTIFYQ_ADMIN_PASSWORD NOTIFYQ_DASHBOARD_DB_PASSWORD
exec postgres -D "$PGDATA" "$@"
