#!/usr/bin/env bash
# Packages of the base's own distribution, into the image: `bash env/image/system.sh STAGE PROFILE`.
# STAGE: runtime (Python, certificates), download (what fetches and unpacks) or toolchain (compilers;
# nvcc for cu118).
# APT_MIRROR replaces the address of the distribution's own archive, and no other.
set -euo pipefail
stage=${1:?usage: system.sh runtime|download|toolchain PROFILE}
profile=${2:?usage: system.sh runtime|download|toolchain PROFILE}
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
  # for this command only: whoever uses the image has another mirror
  kept=$(mktemp -d)
  cp -a /etc/apt/. "$kept"
  trap 'cp -a "$kept"/. /etc/apt && rm -rf "$kept"' EXIT
  mirror=${APT_MIRROR%/}
  ubuntu='https?://([a-z]+\.)?(archive|security)\.ubuntu\.com/ubuntu'
  security='https?://(deb|security)\.debian\.org/debian-security'
  debian='https?://deb\.debian\.org/debian'
  find /etc/apt \( -name '*.list' -o -name '*.sources' \) -exec sed -Ei \
    -e "s#$ubuntu/?( |\$)#$mirror\3#g" \
    -e "s#$security/?( |\$)#${mirror%/*}/debian-security\2#g" \
    -e "s#$debian/?( |\$)#$mirror\1#g" {} +
fi
# Behind a network that inspects TLS, the caller's certificates; only for this command.
# apt drops its rights for downloads, and could read neither of the two secrets then.
options=(-o Acquire::Retries=3 -o APT::Sandbox::User=root)
if [ -s "${SSL_CERT_FILE:-}" ]; then options+=(-o "Acquire::https::CaInfo=$SSL_CERT_FILE"); fi
if [ -s "${NETRC:-}" ]; then options+=(-o "Dir::Etc::netrc=$NETRC"); fi
export DEBIAN_FRONTEND=noninteractive
unreachable() {
  echo "refused: $1, as apt says above" >&2
  echo "    -> no network: APT_MIRROR=http://... names another archive; a full disk: free some," \
    "docker builder prune" >&2
  exit 3
}
install() {
  apt-get "${options[@]}" -qq install -y --no-install-recommends "$@" >/dev/null ||
    unreachable "the base's packages could not be installed"
}

# By default apt takes an archive that does not answer for an empty one.
apt-get "${options[@]}" -o APT::Update::Error-Mode=any -qq update ||
  unreachable "the archive of the base's packages could not be read"
case $stage in
  runtime)
    # venv is what makes the environment; make and git are no part of a run.
    install "$python" "$python-venv" ca-certificates tzdata
    ;;
  download)
    install curl xz-utils
    ;;
  toolchain)
    install gcc g++ make git patch "$python-dev"
    if [ "$profile" = cu118 ]; then
      case $ID in
        debian) install nvidia-cuda-toolkit ;; # non-free; 11.8.89
        ubuntu) install cuda-minimal-build-11-8 ;; # NVIDIA's source, which its base images carry
      esac
    fi
    ;;
  *)
    echo "refused: unknown stage $stage; expected runtime, download or toolchain" >&2
    exit 1
    ;;
esac
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
