# shellcheck shell=sh
# Sourced by build steps: where the caller gave certificates (build secret `ca`), every tool uses
# them, and nothing of it stays in the image.
if [ -s /run/secrets/ca ]; then
  export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca REQUESTS_CA_BUNDLE=/run/secrets/ca
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
