#!/usr/bin/env bash
# An empty environment with the pinned uv in it: `bash env/install/venv.sh [PROFILE]`.
# PYTHON names another interpreter; VERL_P40_VENV another folder than .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${1:-cu124}
venv=${VERL_P40_VENV:-.venv}

# The +cu118 wheel of torch that is pinned is a cp310 one.
case $profile-${TORCH:-} in
  cu118-) accepted="3.10" ;;
  *) accepted="3.10 3.11" ;;
esac

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
is_accepted() { [[ -n $1 && " $accepted " == *" $1 "* ]]; }

# Good as it is: a right Python (the one asked for, if one is), made here, with the pinned uv.
present=$(version_of "$venv/bin/python" || true)
uv_pin=$(sed -n 's/^uv==\([^ ;]*\).*/\1/p' env/locks/uv.txt)
if is_accepted "$present" \
  && { [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON" || true)" = "$present" ]; } \
  && grep -qF "$(realpath "$venv")" "$venv/bin/activate" \
  && [ "$("$venv/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" = "$uv_pin" ]; then
  exit 0
fi

python="" found=""
for candidate in ${PYTHON:-python3 python3.11 python3.10}; do
  version=$(version_of "$candidate" || true)
  found="$found $candidate=${version:-none}"
  if is_accepted "$version"; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "refused: no Python ${accepted// / or } for profile $profile; found:$found" >&2
  echo "    -> Debian 12: apt install python3.11 python3.11-venv; Ubuntu 22.04: apt install" \
    "python3.10 python3.10-venv; or name one: make env PYTHON=/path/to/python" >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "refused: $python ($version) cannot make environments: venv or ensurepip is missing" >&2
  echo "    -> apt install python$version-venv" >&2
  exit 1
fi

"$python" -m venv --clear "$venv"
# uv is exact by its lock: a constraint file in the user's pip settings has no say in it.
if ! PIP_CONSTRAINT=/dev/null "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --no-deps --require-hashes -r env/locks/uv.txt; then
  echo "refused: uv $uv_pin could not be installed, as pip says above" >&2
  echo "    -> no network: PIP_INDEX_URL names a mirror, PIP_CERT its certificates" >&2
  exit 1
fi
