#!/usr/bin/env bash
# Brings the environment to exactly what the locks name: `bash env/install/python.sh PROFILE`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${1:?usage: python.sh PROFILE (cu124 or cu118)}
venv=${VERL_P40_VENV:-.venv}
lock=env/locks/$profile.txt
if [ ! -f "$lock" ]; then
  echo "refused: profile $profile has no lock $lock; expected cu124 or cu118" >&2
  exit 1
fi

# A package that an interrupted run left half linked looks installed: after one, link all again.
unfinished=$venv/.sync-unfinished
# In the image nothing is tested or linted: TOOLS=no leaves out all tools but pip.
tools=env/locks/tools.txt
if [ "${TOOLS:-}" = no ]; then
  tools=$(mktemp)
  trap 'rm -f "$tools"' EXIT
  awk '/^[a-z]/ {keep = /^pip==/} keep' env/locks/tools.txt >"$tools"
fi
again=()
if [ -e "$unfinished" ]; then again=(--reinstall); fi
touch "$unfinished"
# The lock holds setuptools and wheel too, so what builds the sdists is pinned by hash as well.
bash env/install/uv.sh pip sync "${again[@]}" --require-hashes --build-constraints "$lock" \
  "$lock" "$tools"
# The sync took verl out, which no lock names; its record must not say that it is there.
rm -f "$unfinished" "$venv/src/verl/verl-p40.json"
