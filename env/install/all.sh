#!/usr/bin/env bash
# The whole environment: `bash env/install/all.sh [PROFILE]`, or `make env`.
# Silent and instant while nothing that it is made from has changed; finishes what was interrupted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
venv=${VERL_P40_VENV:-.venv}
stamp=$venv/verl-p40.json

stamped() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$stamp" 2>/dev/null || true; }
write_stamp() { printf '{"profile": "%s", "inputs": "%s"}\n' "$profile" "$1" >"$stamp"; }

# Without a wish, the profile stays what it is.
profile=${1:-$(stamped profile)}
profile=${profile:-cu124}
# Scripts in an environment hold its absolute path, so a moved checkout is another input.
inputs=$({
  echo "$PWD $venv $profile ${PYTHON:-} ${MEDIA:-}"
  find env/pins.toml env/locks env/install env/verl.py verl-patches -type f \
    ! -path '*/__pycache__/*' -exec sha256sum {} + | LC_ALL=C sort
} | sha256sum | cut -d' ' -f1)
if [ "$(stamped inputs)" = "$inputs" ] && "$venv/bin/python" -c '' 2>/dev/null; then exit 0; fi

step() {
  local name=$1 started=$SECONDS
  shift
  echo "environment: $name ..."
  "$@"
  echo "environment: $name, $((SECONDS - started)) s"
}
step "venv and uv" bash env/install/venv.sh "$profile"
write_stamp ""
step "packages of profile $profile" bash env/install/python.sh "$profile"
step "verl, patched" bash env/install/verl.sh
write_stamp "$inputs"
echo "environment: $SECONDS s"
