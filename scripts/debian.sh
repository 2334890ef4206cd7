# shellcheck shell=bash
# Functions for packages of another release of Debian. A script that sources this has `apt_quietly`.

# The mirror of this machine, from apt: no script names a host.
find_mirror() {
  apt-get indextargets --format "\$(REPO_URI)" 'Created-By: Packages' 'Label: Debian' |
    awk 'NR == 1 {print} END {exit !NR}'
}

mirror() {
  find_mirror || { apt_quietly update && find_mirror; }
}

# usage: unpack_release RELEASE FOLDER PACKAGE..., with what they depend on
#
# An apt with folders of its own fetches them without a change to the machine's sources.
unpack_release() {
  local apt=$2.apt archive
  mkdir -p "$2" "$apt"/{parts,lists/partial,cache/archives/partial}
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
    "$(mirror)" "$1" >"$apt/sources"
  cat >"$apt/config" <<CONF
Dir::Etc::main "/dev/null";
Dir::Etc::parts "$apt/parts";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::sourcelist "$apt/sources";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
# A mirror may be older than a release in the making promises.
Acquire::Check-Valid-Until "false";
APT::Sandbox::User "root";
CONF
  (
    export APT_CONFIG=$apt/config
    apt_quietly update &&
      apt_quietly install -y --no-install-recommends --download-only "${@:3}"
  ) || return
  for archive in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$archive" "$2" || return; done
}
