#!/usr/bin/env bash
# Builds the image verl-p40:PROFILE: `bash env/image/build.sh [PROFILE]`, or `make build`.
#
# BASE_IMAGE      another base than the pinned one, as make base makes it
# APT_MIRROR, PIP_INDEX_URL, GSM8K_URL, CUDA_ARCH   as in the Dockerfile
# CA_BUNDLE       certificates for the downloads of the build; the host's own by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${1:-cu118}
docker=${DOCKER:-docker}

problems=()
[ -f "env/locks/$profile.txt" ] && [[ $profile == cu* ]] ||
  problems+=("PROFILE=$profile: no such profile; expected cu118 or cu124")
if ! "$docker" version >/dev/null 2>&1; then
  problems+=("no Docker engine answers $docker
    -> start it (systemctl start docker), or let this user reach it (group docker)")
elif ! "$docker" buildx version >/dev/null 2>&1; then
  problems+=("$docker has no buildx -> install the package docker-buildx or docker-buildx-plugin")
elif [ -n "${BASE_IMAGE:-}" ] && [[ $BASE_IMAGE == local/* ]] &&
  ! "$docker" image inspect "$BASE_IMAGE" >/dev/null 2>&1; then
  problems+=("BASE_IMAGE=$BASE_IMAGE: not here -> make base makes local/debian:bookworm")
fi
ca=${CA_BUNDLE:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
if [ -n "${CA_BUNDLE:-}" ] && [ ! -r "$ca" ]; then
  problems+=("CA_BUNDLE=$ca: cannot be read; expected certificates in PEM format")
fi
if [ ${#problems[@]} -gt 0 ]; then
  echo "refused: ${#problems[@]} problem(s)" >&2
  printf '  %s\n' "${problems[@]}" >&2
  exit 1
fi

arguments=(--build-arg "PROFILE=$profile" --build-context downloads=env/downloads)
arguments+=(--build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
for name in BASE_IMAGE APT_MIRROR PIP_INDEX_URL GSM8K_URL CUDA_ARCH; do
  if [ -n "${!name:-}" ]; then arguments+=(--build-arg "$name=${!name}"); fi
done
if [ -r "$ca" ]; then arguments+=(--secret "id=ca,src=$ca"); fi
mkdir -p env/downloads
started=$SECONDS
"$docker" buildx build "${arguments[@]}" --progress "${PROGRESS:-auto}" --target "${TARGET:-runtime}" \
  --load --tag "${TAG:-verl-p40:$profile}" .
if [ "${TARGET:-runtime}" = runtime ] && [ -z "${TAG:-}" ]; then PROFILE=$profile bash env/image/settle.sh; fi
size=$("$docker" image inspect --format '{{.Size}}' "${TAG:-verl-p40:$profile}")
echo "image ${TAG:-verl-p40:$profile}: $((size / 1000000)) MB, $((SECONDS - started)) s"
