#!/usr/bin/env bash
# The environment's own uv, behind the same index, certificates and timeout as the user's pip:
# `bash env/install/uv.sh pip list`. uv reads neither pip.conf nor PIP_* itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export VIRTUAL_ENV=${VERL_P40_VENV:-$PWD/.venv}

pip_setting() { "$VIRTUAL_ENV/bin/python" -m pip config get "$1" 2>/dev/null || true; }

if [ -z "${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-}}" ]; then
  index=${PIP_INDEX_URL:-$(pip_setting install.index-url)}
  index=${index:-$(pip_setting global.index-url)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
fi
if [ -z "${SSL_CERT_FILE:-}" ]; then
  certificates=${PIP_CERT:-$(pip_setting global.cert)}
  [ -z "$certificates" ] || export SSL_CERT_FILE=$certificates
fi
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-${PIP_DEFAULT_TIMEOUT:-180}}
# The Python of the machine or none: nothing that no lock names is fetched.
export UV_PYTHON_DOWNLOADS=never

exec "$VIRTUAL_ENV/bin/uv" "$@"
