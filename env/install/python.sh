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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# In the image nothing is tested or linted: TOOLS=no leaves out all tools but pip.
requirements=("$work/lock.txt" env/locks/tools.txt)
if [ "${TOOLS:-}" = no ]; then
  requirements[1]=$work/tools.txt
  awk '/^[a-z]/ {keep = /^pip==/} keep' env/locks/tools.txt >"$work/tools.txt"
fi
# TORCH=no: all but torch itself, which for cu118 is not in the registry. Where its wheel lies in
# env/downloads/ it is taken from there, by the same hash.
wheel=$(awk '$1 == "cu118" && $2 ~ /^torch-/ {print $2}' env/locks/archives.txt)
awk -v without="${TORCH:-}" '/^[a-z]/ {keep = !(without == "no" && /^torch( |==)/)} keep' "$lock" >"$work/lock.txt"
if [ -f "env/downloads/$wheel" ]; then
  sed -i "s|^torch @ [^ ]*|torch @ file://${PWD// /%20}/env/downloads/${wheel//+/%2B}|" "$work/lock.txt"
fi
# MEDIA=yes: torchvision and torchaudio too.
if [ "${MEDIA:-}" = yes ] && [ "${TORCH:-}" != no ]; then
  media=env/locks/media.txt
  if [ "$profile" = cu118 ]; then
    bash env/install/archives.sh "$work" cu118-media
    awk '/^[a-z]/ {keep = /^pillow==/} keep' $media >"$work/media.txt"
    awk -v folder="$work" '{printf "%s/%s --hash=sha256:%s\n", folder, $3, $1}' \
      "$work/archives.txt" >>"$work/media.txt"
    media=$work/media.txt
  fi
  requirements+=("$media")
fi
again=()
if [ -e "$unfinished" ]; then again=(--reinstall); fi
touch "$unfinished"
# The lock holds setuptools and wheel too, so what builds the sdists is pinned by hash as well.
if ! bash env/install/uv.sh pip sync "${again[@]}" --require-hashes \
  --build-constraints "$work/lock.txt" "${requirements[@]}"; then
  echo "refused: the packages of $lock could not be installed, as uv says above" >&2
  echo "    -> no network: PIP_INDEX_URL names a mirror, PIP_CERT its certificates; a full disk:" \
    "about 7 GB are needed; the same command goes on from there" >&2
  exit 1
fi
# The sync took verl out, which no lock names; its record must not say that it is there.
rm -f "$unfinished" "$venv/src/verl/verl-p40.json"
