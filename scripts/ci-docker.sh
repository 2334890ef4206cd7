#!/usr/bin/env bash
# Runs a command with a container engine, `docker compose` and a base image, then removes them all.
#
# usage: scripts/ci-docker.sh COMMAND [ARGUMENT...]
#
# An engine that already runs is used as it is. Otherwise, on Debian as root, a private one is
# started from Debian's packages and the base image is made with mmdebstrap: no image registry is
# needed. COMMAND gets DOCKER_HOST, DOCKER_CONFIG, NOTIFYQ_BASE_IMAGE and NOTIFYQ_BUILD_NETWORK.
#
# exit 77: no engine is possible here. With NOTIFYQ_REQUIRE_DOCKER=1 that is only a kernel that
# refuses containers; a package that does not install or an engine that does not start is a failure.
# shellcheck disable=SC2317  # the trap's functions look unreachable behind the last exit
set -euo pipefail
# shellcheck source=scripts/debian.sh
source "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

suite=trixie
# Short, because the path of a unix socket is limited to 107 bytes.
work=$(mktemp -d /tmp/nqd.XXXXXX)
log=$work/log
engine_pid=
policy_made=

note() { printf '[ci-docker %3ds] %s\n' "$SECONDS" "$*" >&2; }

unavailable() {
  note "$*"
  [[ ! -s $log ]] || tail -n 5 "$log" >&2
  [[ ${NOTIFYQ_REQUIRE_DOCKER:-} != 1 ]] || exit 1
  exit 77
}

stop_engine() {
  local containers path
  containers=$(docker ps -aq)
  [[ -z $containers ]] || xargs docker rm -fv <<<"$containers"
  # Removes the bridges of compose projects, which the engine leaves behind.
  docker network prune -f
  kill "$engine_pid"
  wait "$engine_pid"
  ip link del docker0
  while read -r path; do umount -l "$path"; done \
    < <(awk -v dir="$work/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r)
}

clean_up() {
  local status=$?
  # Every step is tried, also after one that failed.
  set +e
  [[ -z $engine_pid ]] || stop_engine >>"$log" 2>&1
  [[ ! -s $work/firewall ]] || iptables-restore <"$work/firewall"
  [[ -z $policy_made ]] || rm -f /usr/sbin/policy-rc.d
  rm -rf "$work"
  exit "$status"
}

apt_quietly() {
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1
}

install_missing() {
  local command=$1
  shift
  ! command -v "$command" >/dev/null || return 0
  # Debian's packages start their daemons on installation unless a policy forbids that.
  if [[ ! -e /usr/sbin/policy-rc.d ]]; then
    policy_made=1
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
  fi
  note "apt-get install $*"
  apt_quietly update && apt_quietly install -y --no-install-recommends "$@"
}

kernel_allows_containers() {
  unshare --mount --net --pid --fork ip link add probe type bridge 2>>"$log"
}

save_firewall() {
  # May fail: without iptables the engine starts in its second form.
  iptables-save >"$work/firewall" 2>>"$log" || true
  [[ -s $work/firewall ]] || printf '%s\n' \
    '*filter' ':INPUT ACCEPT' ':FORWARD ACCEPT' ':OUTPUT ACCEPT' COMMIT \
    '*nat' ':PREROUTING ACCEPT' ':INPUT ACCEPT' ':OUTPUT ACCEPT' ':POSTROUTING ACCEPT' COMMIT \
    >"$work/firewall"
}

launch_engine() {
  # In a session of its own: Ctrl-C must reach only the command, the engine is needed for the
  # clean-up. It ends by itself if this script is killed.
  setsid setpriv --pdeathsig TERM \
    dockerd --host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/exec" \
    --pidfile "$work/pid" "$@" </dev/null >>"$log" 2>&1 &
  engine_pid=$!
  for _ in {1..150}; do
    ! docker version >/dev/null 2>&1 || return 0
    kill -0 "$engine_pid" 2>/dev/null || break
    sleep 0.1
  done
  kill "$engine_pid" 2>/dev/null && wait "$engine_pid"
  engine_pid=
  return 1
}

start_engine() {
  if docker info >/dev/null 2>&1; then
    note "engine: $(docker version --format '{{.Server.Version}}'), already running"
    return
  fi
  [[ $EUID == 0 && -r /etc/debian_version ]] || unavailable 'no engine, and not root on Debian'
  install_missing ip iproute2 || unavailable 'iproute2 does not install'
  if ! kernel_allows_containers; then
    # No package and no change to this project can fix that: it is never a failure.
    NOTIFYQ_REQUIRE_DOCKER=
    unavailable 'the kernel refuses namespaces or bridges'
  fi
  install_missing dockerd docker.io iptables || unavailable 'docker.io does not install'
  # docker0 and the firewall belong to the whole machine: one private engine at a time. The engine
  # inherits the lock, which ends with it even if this script is killed.
  exec 9<"$(command -v dockerd)"
  flock --nonblock 9 || note 'waiting for another private engine to end'
  flock --timeout 900 9 || unavailable 'another private engine has been running for 15 minutes'
  save_firewall
  export DOCKER_HOST=unix://$work/s
  if ! launch_engine; then
    # Without NAT containers still reach each other; only builds need a way out.
    launch_engine --iptables=false || unavailable 'dockerd does not start'
    export NOTIFYQ_BUILD_NETWORK=host
  fi
  note "engine: private dockerd $(docker version --format '{{.Server.Version}}')"
}

# Debian 12 has only compose v1. The plug-in of the next release runs on Debian 12.
fetch_compose() {
  local plugins=$work/config/cli-plugins
  unpack_release "$suite" "$work/compose" docker-compose &&
    mkdir -p "$plugins" &&
    cp "$work/compose/usr/libexec/docker/cli-plugins/docker-compose" "$plugins/"
}

provide_compose() {
  if ! docker compose version >/dev/null 2>&1; then
    export DOCKER_CONFIG=$work/config
    fetch_compose || unavailable 'no docker compose'
  fi
  note "compose: $(docker compose version --short)"
}

make_base_image() {
  local options=(--quiet --variant=minbase --include=ca-certificates
    # The published slim images leave these out, too.
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*'
    --dpkgopt='path-exclude=/usr/share/locale/*')
  # Builds need the authority of a network that re-signs TLS, which is installed on the machine.
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    # shellcheck disable=SC2016  # mmdebstrap's own shell expands $1
    options+=(--customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share'
      --customize-hook='chroot "$1" update-ca-certificates')
  fi
  mmdebstrap "${options[@]}" "$suite" - "$(mirror)" 2>>"$log" |
    docker import --change 'CMD ["bash"]' - "$1" >>"$log"
}

provide_base_image() {
  export NOTIFYQ_BASE_IMAGE=${NOTIFYQ_BASE_IMAGE:-debian:$suite-slim}
  if ! docker image inspect "$NOTIFYQ_BASE_IMAGE" >/dev/null 2>&1 &&
    ! docker pull --quiet "$NOTIFYQ_BASE_IMAGE" >/dev/null 2>&1; then
    # A name of its own: it must not replace a real debian image.
    NOTIFYQ_BASE_IMAGE=notifyq-base:$suite
    docker image inspect "$NOTIFYQ_BASE_IMAGE" >/dev/null 2>&1 ||
      { install_missing mmdebstrap mmdebstrap && make_base_image "$NOTIFYQ_BASE_IMAGE"; } ||
      unavailable 'no base image'
  fi
  note "base image: $NOTIFYQ_BASE_IMAGE"
}

[[ $# -gt 0 ]] || { note 'usage: scripts/ci-docker.sh COMMAND [ARGUMENT...]'; exit 2; }
trap clean_up EXIT
trap 'exit 130' INT TERM
start_engine
provide_compose
provide_base_image
status=0
"$@" 9<&- || status=$?
note "command ended with exit code $status"
exit "$status"
