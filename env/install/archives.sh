#!/usr/bin/env bash
# What no package index has, into a folder: `bash env/install/archives.sh FOLDER GROUP...`
# GROUP: data, cu118, cu118-media, as in env/locks/archives.txt.
#
# A file laid by hand in env/downloads/ is taken from there; else it is fetched, checked by its hash
# and gets its name when it is whole. What was begun goes on. All that cannot be had is told before
# the first long download. A file without a pinned hash is compared with what the first build
# recorded in env/downloads/recorded.sha256. FOLDER/archives.txt says what is there: sha256, pinned|recorded, file.
# Exit codes: 1 another hash, 3 something could not be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:?usage: archives.sh FOLDER GROUP...}
shift
laid=env/downloads
mkdir -p "$folder"

problems=() code=0
problem() { # code, where, what, what to do
  if [ "$1" -gt "$code" ]; then code=$1; fi
  problems+=("$2: $3"$'\n'"    -> $4")
}
tell_problems() {
  if [ ${#problems[@]} -eq 0 ]; then return; fi
  echo "refused: ${#problems[@]} problem(s)" >&2
  printf '  %s\n' "${problems[@]}" >&2
  exit "$code"
}

hash_of() { sha256sum "$1" | cut -d' ' -f1; }
# What the file's hash must be: pinned, else recorded, else nothing is known.
expected_of() { # file, pinned
  if [ "$2" != - ]; then
    echo "$2"
  elif [ -f $laid/recorded.sha256 ]; then
    awk -v file="$1" '$2 == file {print $1}' $laid/recorded.sha256
  fi
}
address() { # mirror's variable, url, file: a mirror has the files by their names in env/downloads/
  local base=${!1:-}
  if [ -n "$base" ]; then echo "${base%/}/${3//+/%2B}"; else echo "$2"; fi
}
get() { # every download: follows, gives up on an error, tries again what may pass
  local options=(--fail --location --show-error --retry 3 --connect-timeout 20)
  if [ -s "${SSL_CERT_FILE:-}" ]; then options+=(--cacert "$SSL_CERT_FILE"); fi
  if [ -s "${NETRC:-}" ]; then options+=(--netrc-file "$NETRC"); fi
  curl "${options[@]}" "$@"
}
is_there() { # a mirror that knows no HEAD is asked for the first byte
  get --silent --retry 1 --head --output /dev/null "$1" 2>&1 ||
    get --silent --retry 1 --range 0-0 --output /dev/null "$1" >/dev/null 2>&1
}
go_on() { # file, address: from where it ended, or anew where the server cannot (33) or has no more (22)
  local began=no status=0
  if [ -s "$1" ]; then began=yes; fi
  get --continue-at - --output "$1" "$2" || status=$?
  if [ $began = yes ] && { [ $status = 33 ] || [ $status = 22 ]; }; then
    rm "$1"
    status=0
    get --output "$1" "$2" || status=$?
  fi
  return $status
}
lay_it() { # file, mirror's variable, sha256, bytes
  local what="lay it as $laid/$1"
  if [ "$3" != - ]; then what="$what (sha256 $3"; else what="$what (no hash of it is pinned"; fi
  if [ "$4" != - ]; then what="$what, $4 bytes"; fi
  echo "$what), or name a mirror's folder in $2"
}

missing=()
chosen=()
while read -r group file pinned bytes mirror url; do
  if [[ " $* " != *" $group "* ]]; then continue; fi
  chosen+=("$file $pinned")
  expected=$(expected_of "$file" "$pinned")
  for place in "$laid/$file" "$folder/$file"; do
    if [ -f "$place" ]; then break; fi
  done
  if [ -f "$place" ]; then
    found=$(hash_of "$place")
    if [ -z "$expected" ] || [ "$found" = "$expected" ]; then
      if [ "$place" != "$folder/$file" ]; then
        cp "$place" "$folder/.$file.part"
        mv "$folder/.$file.part" "$folder/$file"
      fi
      continue
    fi
    if [ "$place" = "$laid/$file" ]; then
      problem 1 "$place" "has sha256 $found; expected $expected" "remove it, or lay the file of $url there"
      continue
    fi
    rm "$place" # of an earlier pin
  fi
  from=$(address "$mirror" "$url" "$file")
  if said=$(is_there "$from"); then
    missing+=("$file $pinned $bytes $mirror $from")
  else
    problem 3 "$from" "cannot be fetched: ${said##*$'\n'}" "$(lay_it "$file" "$mirror" "$pinned" "$bytes")"
  fi
done < <(grep -v '^#' env/locks/archives.txt)
tell_problems

for entry in ${missing[@]+"${missing[@]}"}; do
  read -r file pinned bytes mirror from <<<"$entry"
  expected=$(expected_of "$file" "$pinned")
  echo "$file ... from $from"
  # curl's own meter shows the time left, and its last line the reason
  if ! go_on "$folder/.$file.part" "$from"; then
    problem 3 "$from" "cannot be fetched whole, as curl says above" \
      "the same command goes on from there; or $(lay_it "$file" "$mirror" "$pinned" "$bytes")"
    continue
  fi
  found=$(hash_of "$folder/.$file.part")
  if [ -n "$expected" ] && [ "$found" != "$expected" ]; then
    rm "$folder/.$file.part"
    problem 1 "$from" "gave a file of sha256 $found; expected $expected" \
      "$(lay_it "$file" "$mirror" "$pinned" "$bytes")"
    continue
  fi
  mv "$folder/.$file.part" "$folder/$file"
done
tell_problems

for entry in ${chosen[@]+"${chosen[@]}"}; do
  read -r file pinned <<<"$entry"
  found=$(hash_of "$folder/$file")
  if [ "$pinned" = - ]; then
    kind=recorded
    [ -n "$(expected_of "$file" -)" ] || echo "$file: no hash of it is pinned; the build records $found" >&2
  else
    kind=pinned
  fi
  echo "$found $kind $file"
done >"$folder/.archives.txt"
mv "$folder/.archives.txt" "$folder/archives.txt"
# of earlier pins
find "$folder" -mindepth 1 -maxdepth 1 -type f ! -name archives.txt -printf '%f\n' |
  while read -r file; do grep -qF " $file" "$folder/archives.txt" || rm "$folder/$file"; done
