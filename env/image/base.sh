#!/usr/bin/env bash
# A base image from Debian's packages alone, for where none can be pulled: `make base`.
# bash env/image/base.sh [NAME]; the mirror is the host's own package source, or APT_MIRROR.
set -euo pipefail
name=${1:-local/debian:bookworm}
docker=${DOCKER:-docker}

for tool in mmdebstrap "$docker"; do
  if ! command -v "$tool" >/dev/null; then
    echo "refused: $tool is missing" >&2
    echo "    -> Debian or Ubuntu: apt install mmdebstrap; an engine: docs.docker.com/engine/install" >&2
    exit 1
  fi
done
if ! "$docker" version >/dev/null 2>&1; then
  echo "refused: no Docker engine answers $docker" >&2
  echo "    -> start it (systemctl start docker), or let this user reach it (group docker)" >&2
  exit 1
fi

# Where this host gets a suite of Debian from.
address() {
  # shellcheck disable=SC2016 # apt's own variables
  apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI) $(RELEASE)' 2>/dev/null |
    awk -v suite="$1" '$1 == "Debian" && ($2 == suite || $NF == suite) {print $3; exit}'
}
parts="main contrib non-free non-free-firmware"
sources=()
if [ -n "${APT_MIRROR:-}" ]; then
  mirror=${APT_MIRROR%/}
  sources=("deb $mirror bookworm $parts" "deb $mirror bookworm-updates $parts"
    "deb ${mirror%/*}/debian-security bookworm-security $parts")
else
  for suite in bookworm bookworm-updates bookworm-security; do
    mirror=$(address $suite)
    if [ -n "$mirror" ]; then sources+=("deb $mirror $suite $parts"); fi
  done
fi
if [[ ${sources[*]} == *://*@* ]]; then
  echo "refused: the address of the Debian archive holds a login, which the image would show" >&2
  echo "    -> name one without: make base APT_MIRROR=http://..." >&2
  exit 1
fi
if [[ ${sources[*]} != *" bookworm "* ]]; then
  echo "refused: this host installs from no Debian bookworm archive, so the mirror is not known" >&2
  echo "    -> name one: make base APT_MIRROR=http://..." >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
started=$SECONDS
echo "base: bookworm from Debian's packages ..."
# ca-certificates: every later download checks certificates. The rest of the base is minimal.
# It brings this host's name and name server along, which are nobody's business.
# shellcheck disable=SC2016 # mmdebstrap's own variable
mmdebstrap --quiet --variant=minbase \
  --include=ca-certificates --aptopt='Apt::Install-Recommends "false"' \
  --customize-hook='rm -f "$1/etc/hostname" && : >"$1/etc/resolv.conf"' \
  bookworm "$work/base.tar" "${sources[@]}"
"$docker" import --change 'CMD ["bash"]' --message "Debian bookworm by mmdebstrap" \
  "$work/base.tar" "$name" >/dev/null
echo "base: $name, $("$docker" image inspect --format '{{.Size}}' "$name" | awk '{printf "%.0f MB", $1 / 1e6}'), $((SECONDS - started)) s"
