#!/usr/bin/env bash
# Builds the image verl-p40:PROFILE: `bash env/image/build.sh [PROFILE [OPTION-OF-BUILDX...]]`, or
# `make build`.
#
# BASE_IMAGE      another base than the pinned one, as make base makes it
# APT_MIRROR, PIP_INDEX_URL, TORCH_URL, CUDNN_URL, APEX_URL, GSM8K_URL, HF_ENDPOINT   mirrors
# CUDA_ARCH, MEDIA   as in the Dockerfile
# CA_BUNDLE, NETRC   certificates (the host's own by default) and logins for the downloads
# TARGET          another stage than runtime; its image is verl-p40:PROFILE-TARGET
# TAG             another name for the image; compose is not told of it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${1:-cu118}
docker=${DOCKER:-docker}
target=${TARGET:-runtime}
tag=verl-p40:$profile
if [ "$target" != runtime ]; then tag=$tag-$target; fi
tag=${TAG:-$tag}
base=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile)}

problems=()
[ -f "env/locks/$profile.txt" ] && [[ $profile == cu* ]] ||
  problems+=("PROFILE=$profile: no such profile; expected cu118 or cu124")
if ! "$docker" version >/dev/null 2>&1; then
  problems+=("no Docker engine answers $docker
    -> start it (systemctl start docker), or let this user reach it (group docker)")
elif ! "$docker" buildx version >/dev/null 2>&1; then
  problems+=("$docker has no buildx -> install the package docker-buildx or docker-buildx-plugin")
else
  if ! "$docker" image inspect "$base" >/dev/null 2>&1; then
    if [[ $base == local/* ]]; then
      problems+=("BASE_IMAGE=$base: not here -> make base makes local/debian:bookworm")
    elif ! said=$("$docker" pull --quiet "$base" 2>&1 >/dev/null); then
      problems+=("BASE_IMAGE=$base: not here, and cannot be pulled: ${said##*$'\n'}
    -> name it at a mirror, or make one: make base, then BASE_IMAGE=local/debian:bookworm (cu124)")
    fi
  fi
  # a first build writes packages, their cache and the image; later ones little
  need=25
  if [ -n "$("$docker" image ls --quiet "verl-p40:$profile*")" ]; then need=3; fi
  root=$("$docker" info --format '{{.DockerRootDir}}' 2>/dev/null || true)
  if [ -d "$root" ]; then
    free=$(df --output=avail -B1G "$root" | tail -1 | tr -d ' ')
    if [ "$free" -lt $need ]; then
      problems+=("$root: $free GB are free; expected $need
    -> free some: docker builder prune, docker image prune; or move it (data-root in daemon.json)")
    fi
  fi
fi
for name in APT_MIRROR PIP_INDEX_URL TORCH_URL CUDNN_URL APEX_URL GSM8K_URL HF_ENDPOINT; do
  if [[ ${!name:-} == *://*@* ]]; then
    problems+=("$name holds a login, which the image's history would show
    -> put it into a netrc file, and its path into NETRC")
  fi
done
if [[ ${MEDIA:-yes} != yes ]]; then
  problems+=("MEDIA=$MEDIA: expected yes, or nothing")
fi
for name in CA_BUNDLE NETRC; do
  if [ -n "${!name:-}" ] && [ ! -r "${!name}" ]; then
    problems+=("$name=${!name}: cannot be read; expected a file")
  fi
done
if [ ${#problems[@]} -gt 0 ]; then
  echo "refused: ${#problems[@]} problem(s)" >&2
  printf '  %s\n' "${problems[@]}" >&2
  exit 1
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)
arguments=(--build-arg "PROFILE=$profile" --build-context downloads=env/downloads)
arguments+=(--build-arg "BASE_IMAGE=$base" --build-arg "VERSION=$version")
arguments+=(--build-arg "REVISION=$revision")
arguments+=(--build-arg "CREATED=$(git log -1 --format=%cI 2>/dev/null || echo unknown)")
for name in APT_MIRROR PIP_INDEX_URL TORCH_URL CUDNN_URL APEX_URL GSM8K_URL HF_ENDPOINT CUDA_ARCH MEDIA; do
  if [ -n "${!name:-}" ]; then arguments+=(--build-arg "$name=${!name}"); fi
done
# The engine knows these by itself and keeps them out of the image.
for name in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
  if [ -n "${!name:-}" ]; then arguments+=(--build-arg "$name"); fi
done
ca=${CA_BUNDLE:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
if [ -r "$ca" ]; then arguments+=(--secret "id=ca,src=$ca"); fi
if [ -n "${NETRC:-}" ]; then arguments+=(--secret "id=netrc,src=$NETRC"); fi
mkdir -p env/downloads
previous=$("$docker" image inspect --format '{{.Id}}' "$tag" 2>/dev/null || true)
started=$SECONDS
if ! "$docker" buildx build "${arguments[@]}" --progress "${PROGRESS:-auto}" --target "$target" \
  --load --tag "$tag" "${@:2}" .; then
  echo "refused: $tag could not be built, for the reason above; nothing of an earlier image is lost" >&2
  exit 1
fi
if [ "$target" = runtime ] && [ -z "${TAG:-}" ]; then
  # What had no pinned hash is held against this from now on.
  "$docker" run --rm --network none "$tag" cat share/archives.txt | awk '$2 == "recorded" {print $1, $3}' |
    while read -r sha256 file; do
      if ! grep -qF " $file" env/downloads/recorded.sha256 2>/dev/null; then
        echo "$sha256  $file" >>env/downloads/recorded.sha256
        echo "recorded in env/downloads/recorded.sha256: $sha256 $file"
      fi
    done
  PROFILE=$profile bash env/image/settle.sh
fi
# The one before has no name any more; where a container still uses it, it stays.
if [ -n "$previous" ] && [ -z "$("$docker" image inspect --format '{{join .RepoTags ""}}' "$previous" 2>/dev/null)" ]; then
  "$docker" image rm "$previous" >/dev/null 2>&1 || true
fi
size=$("$docker" image inspect --format '{{.Size}}' "$tag")
echo "image $tag: $((size / 1000000)) MB, $((SECONDS - started)) s"
