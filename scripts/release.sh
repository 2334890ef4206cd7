#!/usr/bin/env bash
# Build a release: wheel and sdist, twice and compared, with a bill of materials, and checked.
#
# usage: scripts/release.sh [--dry-run] [FOLDER]    FOLDER gets the files; dist by default
#
# With --dry-run the tree may have changes and needs no tag. Nothing is uploaded: at the end stands
# the command that does it.
#
# exit 0: built; 1: a check failed; 2: wrong usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dry_run=
if [[ ${1:-} == --dry-run ]]; then
  dry_run=yes
  shift
fi
if (($# > 1)) || [[ ${1:-} == -* ]]; then
  echo 'usage: scripts/release.sh [--dry-run] [FOLDER]' >&2
  exit 2
fi
folder=$(realpath -m "${1:-dist}")

fail() {
  printf 'release: %s\n' "$1" >&2
  exit 1
}

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/notifyq/__init__.py)
[[ -n $version ]] || fail 'src/notifyq/__init__.py has no version'
grep -q "^## $version\$" CHANGELOG.md || fail "CHANGELOG.md has no section $version"
if [[ -z $dry_run ]]; then
  [[ -z $(git status --porcelain) ]] || fail 'the tree has changes'
  [[ $(git describe --exact-match --tags 2>/dev/null) == "v$version" ]] ||
    fail "the commit is not tagged v$version"
fi
[[ ! -e $folder ]] || [[ -z $(ls -A "$folder") ]] || fail "$folder is not empty"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

echo "release: notifyq $version, built twice"
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install -q build cyclonedx-bom pip-audit twine
for number in 1 2; do
  "$work/tools/bin/python" -m build -o "$work/$number" . >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
diff -r "$work/1" "$work/2" || fail 'two builds differ'
"$work/tools/bin/twine" check --strict "$work"/1/*

echo 'release: bill of materials of an installation with all extras for users'
python3 -m venv "$work/installed"
# Not those of developers, and not Spark, which is 490 MB.
extras=$("$work/tools/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
print(*sorted(extras.keys() - {"bench", "dev", "docs", "spark"}), sep=",")')
"$work/installed/bin/pip" install -q "$(echo "$work"/1/*.whl)[$extras]"
"$work/tools/bin/cyclonedx-py" environment "$work/installed/bin/python" \
  --output-reproducible --of JSON -o "$work/1/notifyq-$version.cdx.json"

echo 'release: known weaknesses of what it needs'
"$work/installed/bin/pip" freeze --exclude notifyq >"$work/requirements"
"$work/tools/bin/pip-audit" --no-deps --disable-pip -r "$work/requirements" >"$work/audit" 2>&1 || {
  cat "$work/audit"
  [[ -n $dry_run ]] || fail 'see above'
}
if grep -q 'could not be audited' "$work/audit"; then
  echo 'release: the index here has no data on weaknesses: nothing is known of those above'
fi

mkdir -p "$folder"
mv "$work"/1/* "$folder"
(cd "$folder" && sha256sum -- *)
if [[ -n $dry_run ]]; then
  echo "release: a dry run; the files are in $folder"
else
  echo "release: upload with: twine upload $folder/*.whl $folder/*.tar.gz"
fi
