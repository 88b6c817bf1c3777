#!/usr/bin/env bash
# Runs a command and collects what it changed below a folder, so that a later stage copies these files
# and not the whole folder: `bash env/image/overlay.sh FOLDER OVERLAY COMMAND...`
set -euo pipefail
folder=${1:?} overlay=${2:?}
shift 2
marker=$(mktemp)
# by the time of the change, since an archive brings the times of its files along
"$@"
mkdir -p "$overlay"
cd /
find "${folder#/}" \( -type f -o -type l \) -cnewer "$marker" ! -path '*/__pycache__/*' -print0 |
  tar --null --files-from=- -cf - | tar -xf - -C "$overlay"
rm "$marker"
