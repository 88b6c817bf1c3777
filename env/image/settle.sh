#!/usr/bin/env bash
# Writes .env, which docker compose reads: who owns out/, which image, which device. Makes out/ before
# Docker could make it as root. `bash env/image/settle.sh`; PROFILE, DEVICE (cpu|cuda), PRESET, RUN_UID,
# RUN_GID, CA_BUNDLE, VERL_P40_OUT, TRAIN_MEMORY, TRAIN_CPUS, SHM_SIZE. Says which device, and why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
docker=${DOCKER:-docker}
mark="# Written by make build and make train (env/image/settle.sh); read by docker compose."

if [ -f .env ] && [ "$(head -1 .env)" != "$mark" ]; then
  echo "refused: .env was not written by this project, and docker compose reads it" >&2
  echo "    -> move it away; what it sets can stand in the shell's environment" >&2
  exit 1
fi
# What was given once stays, until it is given otherwise.
earlier() { sed -n "s/^$1=//p" .env 2>/dev/null || true; }

profile=${PROFILE:-}
for candidate in cu118 cu124; do
  if [ -z "$profile" ] && "$docker" image inspect "verl-p40:$candidate" >/dev/null 2>&1; then
    profile=$candidate
  fi
done
given=${DEVICE:-$(earlier DEVICE)}
device=$given why="DEVICE=$given"
if [ -z "$device" ]; then
  device=cpu why="the engine knows no NVIDIA runtime; make doctor tells more"
  runtimes=$("$docker" info --format '{{json .Runtimes}}' 2>/dev/null || true)
  if [[ $runtimes == *'"nvidia"'* ]] || command -v nvidia-container-runtime-hook >/dev/null; then
    device=cuda why="the engine has NVIDIA's runtime"
  fi
fi
files=docker-compose.yml preset=p40-grpo
case $device in
  cuda) ;;
  cpu)
    files=$files:docker-compose.cpu.yml preset=cpu-demo
    version=$("$docker" compose version --short 2>/dev/null || true)
    if [[ $version =~ ^v?2\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -lt 24 ]; then
      echo "refused: docker compose is $version; without a GPU 2.24 or newer is needed" >&2
      echo "    -> install a newer docker-compose-plugin" >&2
      exit 1
    fi
    ;;
  *)
    echo "refused: DEVICE=$device; expected cuda or cpu" >&2
    exit 1
    ;;
esac
# Behind a network that inspects TLS, downloads at run time need the host's certificates too.
ca=${CA_BUNDLE:-$(earlier CA_BUNDLE)}
ca=${ca:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
if [ -r "$ca" ]; then files=$files:docker-compose.ca.yml; fi
uid=${RUN_UID:-$(id -u)} gid=${RUN_GID:-$(id -g)}
# In a rootless engine root is the caller, and every other user is none of this host's.
if [[ $("$docker" info --format '{{.SecurityOptions}}' 2>/dev/null || true) == *name=rootless* ]]; then
  uid=0 gid=0
fi
out=${VERL_P40_OUT:-$(earlier VERL_P40_OUT)}
mkdir -p "${out:-out}"
memory=${TRAIN_MEMORY:-$(earlier TRAIN_MEMORY)}

fresh=$(mktemp .env.XXXXXX)
{
  echo "$mark"
  echo "PROFILE=${profile:-cu118}"
  echo "PRESET=${PRESET:-$preset}"
  echo "RUN_UID=$uid"
  echo "RUN_GID=$gid"
  echo "COMPOSE_FILE=$files"
  # two checkouts of one name must not take each other's containers
  echo "COMPOSE_PROJECT_NAME=verl-p40-$(printf %s "$PWD" | cksum | cut -d' ' -f1)"
  echo "CA_BUNDLE=$ca"
  echo "TRAIN_MEMORY=${memory:-$(awk '/^MemTotal/ {printf "%dm", $2 * 0.9 / 1024}' /proc/meminfo)}"
  if [ -n "$given" ]; then echo "DEVICE=$given"; fi
  if [ -n "$out" ]; then echo "VERL_P40_OUT=$out"; fi
  for name in TRAIN_CPUS SHM_SIZE; do
    value=${!name:-$(earlier $name)}
    if [ -n "$value" ]; then echo "$name=$value"; fi
  done
} >"$fresh"
chmod 644 "$fresh"
mv "$fresh" .env
echo "compose: $device, preset ${PRESET:-$preset}: $why"
