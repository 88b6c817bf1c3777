#!/usr/bin/env bash
# apex without CUDA extensions: `bash env/install/apex.sh PROFILE ARCHIVES`, after torch.
# cpp_ext alone gives apex_C (flatten, unflatten) and no amp_C; a C++ compiler is needed, nvcc is not.
# For cu118 only, for other software: verl 0.5.0 takes apex in its Megatron path and nothing here does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${1:?usage: apex.sh PROFILE ARCHIVES}
archives=${2:?usage: apex.sh PROFILE ARCHIVES}
if [ "$profile" != cu118 ]; then exit 0; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar --extract --file "$(echo "$archives"/apex-*.tar.gz)" --directory "$work" --strip-components 1
# Its setup.py looks for nvcc only where no list is given.
export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-6.1}
"${VERL_P40_VENV:-.venv}/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
  --no-build-isolation --config-settings "--build-option=--cpp_ext" "$work"
