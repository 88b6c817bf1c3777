#!/usr/bin/env bash
# verl, patched, into the environment: `bash env/install/verl.sh`. Does nothing when it is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHONPATH=$PWD exec "${VERL_P40_VENV:-.venv}/bin/python" -m env.verl
