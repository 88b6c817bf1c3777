#!/usr/bin/env bash
# Trains in the image where an engine and the image are, else in .venv; says which and why.
# bash env/image/train.sh ARGUMENTS-OF-run.train; WHERE=host|image forces it, PROFILE and DEVICE choose.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
docker=${DOCKER:-docker}

image() {
  local profile
  for profile in ${PROFILE:-cu118 cu124}; do
    if "$docker" image inspect "verl-p40:$profile" >/dev/null 2>&1; then
      echo "$profile"
      return
    fi
  done
}

profile="" why=""
case ${WHERE:-} in
  host) why="WHERE=host" ;;
  "" | image)
    if ! "$docker" version >/dev/null 2>&1; then
      why="no Docker engine answers"
    elif profile=$(image) && [ -z "$profile" ]; then
      why="no image verl-p40:${PROFILE:-cu118} is here (make build)"
    fi
    if [ "${WHERE:-}" = image ] && [ -n "$why" ]; then
      echo "refused: WHERE=image, and $why" >&2
      exit 1
    fi
    ;;
  *)
    echo "refused: WHERE=$WHERE; expected host, image or nothing" >&2
    exit 1
    ;;
esac

if [ -n "$why" ]; then
  echo "training on this host, in ${VERL_P40_VENV:-.venv}: $why"
  if [[ " $* " != *" --preset "* && " $* " != *" --resume "* ]]; then set -- --preset p40-grpo "$@"; fi
  bash env/install/all.sh "${PROFILE:-}"
  PYTHONPATH=$PWD exec "${VERL_P40_VENV:-.venv}/bin/python" -m run.train "$@"
fi
because="an engine and it are here"
if [ "${WHERE:-}" = image ]; then because="WHERE=image"; fi
echo "training in the image verl-p40:$profile: $because"
# The preset of this run is none for docker compose up.
PROFILE=$profile PRESET='' bash env/image/settle.sh
if [[ " $* " != *" --preset "* && " $* " != *" --resume "* ]]; then
  set -- --preset "$(sed -n 's/^PRESET=//p' .env)" "$@"
fi
exec "$docker" compose run --rm --no-deps train python -m run.train "$@"
