#!/usr/bin/env bash
# Packages of the base's own distribution, into the image: `bash env/image/system.sh STAGE PROFILE`.
# STAGE: runtime (Python, certificates) or toolchain (compilers; nvcc for cu118).
# APT_MIRROR replaces the address of the base's archive.
set -euo pipefail
stage=${1:?usage: system.sh runtime|toolchain PROFILE}
profile=${2:?usage: system.sh runtime|toolchain PROFILE}
# shellcheck source=/dev/null
. /etc/os-release

case $ID-$VERSION_ID in
  debian-12) python=python3.11 ;;
  ubuntu-22.04) python=python3.10 ;;
  *)
    echo "refused: base $PRETTY_NAME; expected Debian 12 or Ubuntu 22.04" >&2
    exit 1
    ;;
esac

if [ -n "${APT_MIRROR:-}" ]; then
  find /etc/apt -name '*.list' -exec sed -Ei "s#https?://[^ ]+#${APT_MIRROR%/}#" {} +
  find /etc/apt -name '*.sources' -exec sed -Ei "s#^URIs: .*#URIs: ${APT_MIRROR%/}#" {} +
fi
# Behind a network that inspects TLS, the caller's certificates; only for this command.
options=()
if [ -s "${SSL_CERT_FILE:-}" ]; then options=(-o "Acquire::https::CaInfo=$SSL_CERT_FILE"); fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get "${options[@]}" -qq install -y --no-install-recommends "$@" >/dev/null; }

apt-get "${options[@]}" -qq update
case $stage in
  runtime)
    # venv is what makes the environment; make and git are no part of a run.
    install "$python" "$python-venv" ca-certificates tzdata
    ;;
  toolchain)
    install gcc g++ make git patch "$python-dev" xz-utils curl
    if [ "$profile" = cu118 ]; then
      case $ID in
        debian) install nvidia-cuda-toolkit ;; # non-free; 11.8.89
        ubuntu) install cuda-nvcc-11-8 ;;      # NVIDIA's source, which its base images carry
      esac
    fi
    ;;
  *)
    echo "refused: unknown stage $stage; expected runtime or toolchain" >&2
    exit 1
    ;;
esac
rm -rf /var/lib/apt/lists/*
