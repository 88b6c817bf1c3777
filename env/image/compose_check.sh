#!/usr/bin/env bash
# Reads the compose files, alone and together, as docker compose will: `bash env/image/compose_check.sh`.
# Needs compose, but no engine. Where there is none it says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
docker=${DOCKER:-docker}
if ! "$docker" compose version >/dev/null 2>&1; then
  echo "compose files: not checked, $docker compose is not here"
  exit 0
fi
empty=$(mktemp)
trap 'rm -f "$empty"' EXIT
for files in "" cpu ca "cpu ca"; do
  options=(--env-file "$empty" --file docker-compose.yml)
  for name in $files; do options+=(--file "docker-compose.$name.yml"); done
  CA_BUNDLE=/dev/null "$docker" compose "${options[@]}" config --quiet
done
