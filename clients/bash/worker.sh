#!/usr/bin/env bash
# A worker for a queue of notifyq in plain psql and bash: one message at a time, each by a command.
#
# usage: worker.sh [--dsn DSN] --queue QUEUE [--poll SECONDS] [--grace SECONDS] -- COMMAND [ARGUMENT]...
#
# Arguments show in the list of processes: a DSN with a password belongs in NOTIFYQ_DSN.
# COMMAND gets the payload as its standard input, and DSN, QUEUE, MESSAGE_ID, LOCK_TOKEN, ATTEMPTS.
#   exit 0    finished; what it printed is the result, as JSON
#   exit 65   rejected; what it wrote to standard error is the reason
#   exit 75   put back for the interval that it printed
#   exit 76   nothing is to be settled: the message is parked
#   else      a failed attempt; what it wrote to standard error is the error
set -uo pipefail
set -m # a handler is a process group of its own, which can be ended as a whole

poll=1 grace=30 DSN=${NOTIFYQ_DSN:-}
while (($#)); do
  case $1 in
    --dsn) DSN=$2 ;;
    --queue) QUEUE=$2 ;;
    --poll) poll=$2 ;;
    --grace) grace=$2 ;;
    --) shift; break ;;
    *) echo "worker.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
: "${DSN:?--dsn is missing}" "${QUEUE:?--queue is missing}" "${1:?the command is missing}"
# psql gets the password by the environment, and values by its standard input.
if [[ $DSN =~ ^([a-z]+://[^:@/]*):([^@/]*)(@.*) ]]; then
  DSN=${BASH_REMATCH[1]}${BASH_REMATCH[3]} password=${BASH_REMATCH[2]//\\/\\\\}
  printf -v PGPASSWORD %b "${password//%/\\x}"
fi
[[ $DSN != *password=* ]] || { echo 'worker.sh: set PGPASSWORD, not password= in the DSN' >&2; exit 2; }
export DSN PGPASSWORD QUEUE MESSAGE_ID LOCK_TOKEN ATTEMPTS
worker=$(hostname):$$:$RANDOM folder=$(mktemp -d)
listener='' handler='' heartbeat='' stopping='' idle='' ends='' released=''

# usage: sql STATEMENT [NAME=VALUE]... Values are quoted by psql, as :'name'.
sql() {
  local sets='' value
  for value in "${@:2}"; do
    value=${value//\\/\\\\} value=${value//$'\n'/\\n} value=${value//\'/\'\'}
    sets+="\set ${value%%=*} '${value#*=}'"$'\n'
  done
  psql -XqAt -v ON_ERROR_STOP=1 -d "$DSN" <<<"$sets$1"
}

# psql prints notifications after a command: it sends a trivial one every half second. It prints a
# line each time, so it ends when this process is gone.
listen() {
  [[ -n $listener ]] && kill -0 "$listener" 2>/dev/null && return
  [[ ! -p $folder/notifications ]] || exec {notifications}<&-
  rm -f "$folder/notifications" && mkfifo "$folder/notifications"
  {
    { echo 'listen new_message;' && while echo 'select 1;'; do sleep 0.5; done; } |
      psql -XqAt -v ON_ERROR_STOP=1 -d "$DSN"
  } >"$folder/notifications" 2>/dev/null &
  listener=$!; disown "$listener"
  exec {notifications}<"$folder/notifications"
  read -r -t 30 _ <&"$notifications"
}

# Wait for a notification of the queue, at most for the time of a poll.
wait_for_notification() {
  local line until=$((SECONDS + ${poll%.*}))
  until ((SECONDS >= until)); do
    read -r -t "$poll" line <&"$notifications" || { (($? > 128)) || sleep 1; return; }
    [[ $line != *"\"new_message\" with payload \"$QUEUE:"* ]] || return
  done
}

# usage: settle CALL [NAME=VALUE]..., a call that shows the token. It is repeated if the connection
# was lost, which is exit code 2 of psql; fails if the database refuses it.
settle() {
  local held pause status
  for pause in 0.1 0.3 1 3 9 0; do
    held=$(sql "select messages.$1" id="$MESSAGE_ID" token="$LOCK_TOKEN" "${@:2}"); status=$?
    [[ $held != f ]] || echo "message $MESSAGE_ID: the lock was lost" >&2
    ((status == 2)) || return "$status"
    sleep "$pause"
  done
}

# Extend the lock until it is lost; then end the handler.
extend() {
  while sleep "$1" && kill -0 $$ 2>/dev/null; do
    held=$(sql "select messages.extend(:id, :token)" id="$MESSAGE_ID" token="$LOCK_TOKEN")
    [[ $held != f ]] || kill -- "-$handler"
  done
}

# Whether a handler has ended; after the grace of a stop it is ended. Not by `wait`: it does not
# return for a signal that came just before it.
is_over() {
  kill -0 "$1" 2>/dev/null || return 0
  [[ -n $stopping ]] || return 1
  ends=${ends:-$((SECONDS + grace))}
  ((SECONDS >= ends)) || return 1
  stop_group "$1" && released=released
}

stop_group() { [[ -z $1 ]] || kill -- "-$1" 2>/dev/null; }

handle() {
  local payload=$1 third=$2 status
  shift 2
  "$@" <<<"$payload" >"$folder/out" 2>"$folder/err" {notifications}<&- &
  handler=$!
  extend "$third" &
  heartbeat=$!; disown "$heartbeat"
  until is_over "$handler"; do sleep 0.05; done
  wait "$handler"; status=${released:-$?}
  stop_group "$heartbeat"
  case $status in
    0) settle "finish(:id, :token, result => nullif(:'result', '')::jsonb)" result="$(<"$folder/out")" ||
      settle "retry(:id, :token, details => 'the result is not JSON')" ;;
    65) settle "finish(:id, :token, 'rejected', :'why')" why="$(<"$folder/err")" ;;
    75) settle "retry(:id, :token, delay => :'delay')" delay="$(<"$folder/out")" ;;
    76) ;;
    released) settle "release(:id, :token)" ;;
    *) settle "retry(:id, :token, details => :'why')" why="exit code $status: $(<"$folder/err")" ;;
  esac
  handler=''
}

clean_up() {
  for group in "$listener" "$heartbeat" "$handler"; do stop_group "$group"; done
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'stopping=1; [[ -z $idle ]] || exit 0' TERM INT

until [[ -n $stopping ]]; do
  listen # before the claim: nothing is missed between the two
  if ! row=$(sql "select id, lock_token, attempts,
    extract(epoch from lock_expires_at - locked_at) / 3, message
    from messages.claim(array[:'queue'], worker => :'worker')" queue="$QUEUE" worker="$worker"); then
    sleep 1
  elif [[ -z $row ]]; then
    idle=1
    [[ -n $stopping ]] || wait_for_notification
    idle=''
    sql 'select from messages.maintain()' >/dev/null
  else
    IFS='|' read -r MESSAGE_ID LOCK_TOKEN ATTEMPTS third payload <<<"$row"
    handle "$payload" "$third" "$@"
  fi
done
