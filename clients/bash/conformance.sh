#!/usr/bin/env bash
# A worker for the conformance suite: its handler follows the payload.
set -euo pipefail

if (($#)); then
  exec "$(dirname "$0")/worker.sh" "$@" -- "$0"
fi

# usage: query STATEMENT [NAME=VALUE]...
query() {
  local statement=$1 values=()
  shift
  for value; do values+=(-v "$value"); done
  psql -XqAt -v ON_ERROR_STOP=1 -v id="$MESSAGE_ID" -v token="$LOCK_TOKEN" "${values[@]}" \
    -d "$DSN" <<<"$statement"
}

payload=$(cat)

# usage: field NAME, a text of the payload
field() { query "select :'payload'::jsonb ->> :'name'" payload="$payload" name="$1"; }

case $(field 'do') in
  return) query "select :'payload'::jsonb -> 'value'" payload="$payload" ;;
  fail) field error >&2; exit 1 ;;
  reject) field reason >&2; exit 65 ;;
  retry) echo "$(field seconds) s"; exit 75 ;;
  wait)
    file=$(field file)
    touch "$file.begun"
    until [[ -e $file ]]; do sleep 0.05; done
    ;;
  publish)
    query "select messages.publish(p ->> 'queue', p -> 'message') from (select :'payload'::jsonb) as t (p)" \
      payload="$payload"
    ;;
  step)
    value=$(query "select messages.step(:id, :token, :'name', :'attempt')" \
      name="$(field name)" attempt="$ATTEMPTS")
    ((ATTEMPTS > 1)) || { echo 'only after the step' >&2; exit 1; }
    echo "$value"
    ;;
  signal)
    state=$(query "select state, payload from messages.await_signal(:id, :token, 'answer', :'name')" \
      name="$(field name)")
    [[ $state != parked* ]] || exit 76
    echo "${state#*|}"
    ;;
  *) echo 'nothing is known of it' >&2; exit 65 ;;
esac
