#!/usr/bin/env bash
# Proves docker-compose.yml by use: builds it, starts it, breaks it, and removes it.
#
# usage: scripts/compose-smoke.sh      (needs docker compose v2; scripts/ci-docker.sh provides one)
#
# One line for each check. The first failure prints the logs of all services and ends with 1.
set -euo pipefail
cd "$(dirname "$0")/.."

# A project and a port of its own: a stack that runs already is neither used nor removed.
export COMPOSE_PROJECT_NAME=notifyqsmoke$$
export NOTIFYQ_DB_PORT=
export NOTIFYQ_DASHBOARD_PORT=

clean_up() {
  local status=$?
  trap - EXIT
  if [[ $status != 0 ]]; then
    docker compose ps --all || true
    docker compose logs --timestamps --no-color || true
  fi
  docker compose down --volumes --remove-orphans --timeout 10 >/dev/null 2>&1 || status=1
  exit "$status"
}

check() {
  local what=$1 started=$SECONDS
  shift
  "$@" || { printf 'FAILED  %s (after %ds)\n' "$what" $((SECONDS - started)); exit 1; }
  printf 'ok      %s (%ds)\n' "$what" $((SECONDS - started))
}

# within SECONDS COMMAND...: repeats the command until it succeeds or the time is up.
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.5
  done
}

compose() { docker compose --progress quiet "$@"; }
sql() { docker compose exec -T db psql -X -qAt -v ON_ERROR_STOP=1 -d notifyq -c "$1"; }
holds() { [[ $(sql "select $1" 2>/dev/null) == t ]]; }
# container SERVICE[.NUMBER] FORMAT
container() {
  local name=$COMPOSE_PROJECT_NAME-${1%.*}-1
  [[ $1 != *.* ]] || name=$COMPOSE_PROJECT_NAME-${1/./-}
  docker inspect --format "$2" "$name"
}

# Each message of this script has a text of its own: no check can see another's message.
insert() { sql "insert into messages.message (message) values ('[\"$1\"]')"; }
archived() {
  holds "exists (select from messages.message_archive where message = '$1' and status = '$2')"
}

publish() { docker compose run --rm -T publish "$@" >/dev/null; }
healthy() { [[ $(container "$1" '{{.State.Health.Status}}') == healthy ]]; }
restarted() { healthy worker && [[ $(container worker '{{.RestartCount}}') -gt 0 ]]; }
# One statement for each message, hence one notification for each, which both workers receive.
both_have_handled() {
  local text
  text=$(printf "insert into messages.message (message) values ('[%d]');\n" {1..50})
  docker compose exec -T db psql -X -q -v ON_ERROR_STOP=1 -d notifyq <<<"$text"
  holds "(select count(distinct split_part(handled_by, ':', 1)) = 2 from messages.message_archive)"
}
logged() { [[ $(docker compose logs --no-color "$1") == *"$2"* ]]; }
runs_as_user() { [[ $(docker compose exec -T "$1" id -u) != 0 ]]; }
on_loopback() { [[ $(docker compose port "$1" "$2") == 127.0.0.1:* ]]; }
# Without a password there is a form, a wrong one is refused, the right one opens the dashboard.
dashboard_lets_in() { docker compose exec -T dashboard python3 - "$1" <scripts/dashboard-login.py; }

refuses_wrong_password() {
  local output
  output=$(docker compose exec -T -e PGPASSWORD=wrong db \
    psql -X -h 127.0.0.1 -d notifyq -c '' 2>&1) || true
  [[ $output == *'password authentication failed'* ]]
}

# Process 1 is immune to signals from its own container, and after `docker kill` the engine does not
# restart it. A second container with the engine's processes kills it as the kernel would.
kill_worker() {
  docker run --rm --pid host --user 0 notifyq/worker:dev \
    sh -c "kill -9 $(container worker '{{.State.Pid}}')"
}

# Each service has a login of its own, which is no superuser and has a SCRAM password.
no_superuser_works() {
  # The dashboard has a session only while a page is open.
  holds "(select array_agg(a.usename::text) @> '{queue_worker,queue_reader}'
      and bool_and(not r.rolsuper)
    from pg_stat_activity as a join pg_roles as r on r.rolname = a.usename
    where a.client_addr is not null)" &&
    holds "(select count(*) = 5 and bool_and(rolpassword like 'SCRAM-SHA-256\$%' and not rolsuper)
      from pg_authid where rolname like 'queue\_%')"
}
refuses_rights_of_another() {
  local output
  output=$(docker compose run --rm -T publish --dsn postgresql://queue_worker@db/notifyq default 1 2>&1) || true
  [[ $output == *'password authentication failed'* ]]
  output=$(docker compose exec -T worker notifyq publish default 1 2>&1) && return 1
  [[ $output == *'permission denied'* ]]
}

trap clean_up EXIT
trap 'exit 130' INT TERM

check 'the profile for monitoring is sound' docker compose --profile monitoring config -q
check 'build' compose build
check 'start, all five healthy' compose up -d --wait --wait-timeout 240
check 'the database listens on the loopback only' on_loopback db 5432
check 'the dashboard listens on the loopback only' on_loopback dashboard 8080
check 'the database refuses a wrong password' refuses_wrong_password
for service in db worker dead dashboard; do
  check "$service does not run as root" runs_as_user "$service"
done

check 'each service has a login of its own, and none is a superuser' within 30 no_superuser_works
check 'no login has the rights of another' refuses_rights_of_another
check 'an admin creates a queue' docker compose run --rm -T admin queues create smoke

check 'publish from the command line' publish default '{"hello": "compose"}'
check '  archived as success' within 30 archived '{"hello": "compose"}' success
check 'publish by INSERT in psql' insert hello
check '  archived as success' within 30 archived '["hello"]' success

check 'two workers share the work' within 30 both_have_handled
check 'the dashboard requires its password' dashboard_lets_in notifyq

check 'publish a message that is rejected' publish default '{"reject": "on purpose"}'
check '  archived as rejected' within 30 archived '{"reject": "on purpose"}' rejected
check '  reported by dead' within 30 logged dead 'rejected: on purpose'

check 'kill -9 the worker' kill_worker
check 'publish while it is down' insert after-kill
check '  the engine restarts it, healthy' within 60 restarted
check '  archived as success' within 30 archived '["after-kill"]' success

check 'pg_cron ran a job' within 75 \
  holds "exists (select from cron.job_run_details where status = 'succeeded')"

check 'restart the database' compose restart db
check 'publish once it answers' within 60 insert after-restart 2>/dev/null
check '  archived as success' within 60 archived '["after-restart"]' success
for service in db worker.1 worker.2 dead dashboard; do
  check "  $service is healthy" within 60 healthy "$service"
done

check 'down' compose down --volumes --timeout 30
