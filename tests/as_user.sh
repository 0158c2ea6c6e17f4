#!/usr/bin/env bash
# The tests that meet the kernel, once more as an ordinary user. Called by `make test` when it runs as root.
# The user gets a copy of the tree and a virtual environment of a Python that he can reach.
set -euo pipefail
cd "$(dirname "$0")/.."
user=rambarde-tests
id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
base=$(getent passwd "$user" | cut -d: -f6)
copy=$base/checkout

python=""
for candidate in /usr/bin/python3 /usr/local/bin/python3 "$(command -v python3)"; do
  if setpriv --reuid "$user" --regid "$user" --init-groups "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || { echo "no Python 3.11 with venv that an ordinary user can reach: install python3-venv"; exit 2; }

rm -rf "$copy"
mkdir -p "$copy"
tar --exclude=./.venv --exclude=./.git --exclude=__pycache__ -cf - . | tar -xf - -C "$copy"
chown -R "$user": "$copy"
as() { setpriv --reuid "$user" --regid "$user" --init-groups env -i HOME="$base" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 ${PIP_CERT:+PIP_CERT="$PIP_CERT"} ${PIP_FIND_LINKS:+PIP_FIND_LINKS="$PIP_FIND_LINKS"} ${CI:+CI="$CI"} "$@"; }
as make -s -C "$copy" setup-dev PYTHON="$python"
as bash -c 'cd "$1" && exec .venv/bin/python -m pytest tests/escape tests/fault tests/e2e' _ "$copy"
