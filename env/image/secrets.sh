# shellcheck shell=sh
# Sourced by build steps: where the caller gave certificates (build secret `ca`) or logins (`netrc`),
# every tool uses them, and nothing of it stays in the image.
if [ -s /run/secrets/ca ]; then
  export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca REQUESTS_CA_BUNDLE=/run/secrets/ca
fi
if [ -s /run/secrets/netrc ]; then export NETRC=/run/secrets/netrc; fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
