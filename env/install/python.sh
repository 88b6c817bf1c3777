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
again=()
if [ -e "$unfinished" ]; then again=(--reinstall); fi
touch "$unfinished"
# The lock holds setuptools and wheel too, so what builds the sdists is pinned by hash as well.
bash env/install/uv.sh pip sync "${again[@]}" --require-hashes --build-constraints "$lock" \
  "$lock" env/locks/tools.txt
# The sync took verl out, which no lock names; its record must not say that it is there.
rm -f "$unfinished" "$venv/src/verl/verl-p40.json"
