#!/usr/bin/env bash
# cuDNN 8.9.7 for other CUDA 11.8 software: `bash env/install/cudnn.sh PROFILE ARCHIVES ROOT`.
# It goes to ROOT/usr/local/cudnn-VERSION. torch never loads it: its cuDNN 9 comes with its packages,
# under another soname. Profiles other than cu118 get nothing but an empty ROOT.
set -euo pipefail
profile=${1:?usage: cudnn.sh PROFILE ARCHIVES ROOT}
archives=${2:?usage: cudnn.sh PROFILE ARCHIVES ROOT}
root=${3:?usage: cudnn.sh PROFILE ARCHIVES ROOT}
mkdir -p "$root"
if [ "$profile" != cu118 ]; then exit 0; fi

archive=$(echo "$archives"/cudnn-linux-x86_64-*-archive.tar.xz)
version=$(sed -E 's/.*x86_64-([0-9]+\.[0-9]+\.[0-9]+)\..*/\1/' <<<"$archive")
target=$root/usr/local/cudnn-$version
mkdir -p "$target" "$root/etc/ld.so.conf.d"
# static libraries are two thirds of it, and for compilers only
tar --extract --file "$archive" --directory "$target" --strip-components 1 --no-same-owner \
  --exclude '*.a'
echo "/usr/local/cudnn-$version/lib" >"$root/etc/ld.so.conf.d/cudnn-$version.conf"
