#!/usr/bin/env bash
# Writes .env, which docker compose reads: who owns out/, which image, which device. Makes out/ before
# Docker could make it as root. `bash env/image/settle.sh`; PROFILE, DEVICE (cpu|cuda), PRESET,
# RUN_UID and RUN_GID.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
docker=${DOCKER:-docker}

profile=${PROFILE:-}
for candidate in cu118 cu124; do
  if [ -z "$profile" ] && "$docker" image inspect "verl-p40:$candidate" >/dev/null 2>&1; then
    profile=$candidate
  fi
done
device=${DEVICE:-}
if [ -z "$device" ]; then
  device=cpu
  if "$docker" info --format '{{json .Runtimes}} {{json .CDISpecDirs}}' 2>/dev/null | grep -q '"nvidia"'; then
    device=cuda
  fi
fi
files=docker-compose.yml preset=p40-grpo
case $device in
  cuda) ;;
  cpu) files=$files:docker-compose.cpu.yml preset=cpu-demo ;;
  *)
    echo "refused: DEVICE=$device; expected cuda or cpu" >&2
    exit 1
    ;;
esac
# Behind a network that inspects TLS, downloads at run time need the host's certificates too.
ca=${CA_BUNDLE:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
if [ -r "$ca" ]; then files=$files:docker-compose.ca.yml; fi
mkdir -p out
fresh=$(mktemp .env.XXXXXX)
cat >"$fresh" <<EOF
# Written by make build and make train (env/image/settle.sh); read by docker compose.
PROFILE=${profile:-cu118}
PRESET=${PRESET:-$preset}
RUN_UID=${RUN_UID:-$(id -u)}
RUN_GID=${RUN_GID:-$(id -g)}
COMPOSE_FILE=$files
CA_BUNDLE=$ca
TRAIN_MEMORY=${TRAIN_MEMORY:-$(awk '/^MemTotal/ {printf "%dm", $2 * 0.9 / 1024}' /proc/meminfo)}
EOF
mv "$fresh" .env
