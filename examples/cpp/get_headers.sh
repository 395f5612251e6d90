#!/bin/sh
# Fetch the header of the C API of ONNX Runtime (MIT licence) into a folder: get_headers.sh FOLDER
#
# The header is a package of Debian (libonnxruntime-dev, from trixie on). It is downloaded with apt, which verifies its signature,
# and unpacked; nothing is installed, and neither root nor a change of the machine's settings is needed. Where the machine runs an
# older Debian, the newer release is asked of the mirror that the machine is set up with. SUITE names another one.
set -eu

PACKAGE=libonnxruntime-dev
HEADER=onnxruntime_c_api.h

fail() {
    echo "get_headers.sh: $1" >&2
    exit 1
}

[ $# -eq 1 ] || { echo "usage: get_headers.sh FOLDER" >&2; exit 2; }
folder=$1
if [ -f "$folder/$HEADER" ]; then
    echo "$folder/$HEADER is there"
    exit 0
fi
for tool in apt-get apt-cache dpkg-deb; do
    command -v $tool >/dev/null || fail "no $tool here: copy $HEADER, of a version not newer than your library, into $folder"
done

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

# An apt that keeps everything in the working folder.
isolate() {
    mirror=$(apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/$VERSION_CODENAME/InRelease'.*|\1|p" | head -n 1)
    [ -n "$mirror" ] || fail "cannot tell the mirror of this machine: is apt set up? Or copy $HEADER into $folder"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -f "$keyring" ] || fail "no $keyring to verify packages with: install debian-archive-keyring, or copy $HEADER into $folder"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    echo "deb [signed-by=$keyring] $mirror ${SUITE:-trixie} main" >"$work/sources.list"
    cat >"$work/apt.conf" <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "$(id -un)";
APT::Update::Post-Invoke-Success "";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "20";
END
    export APT_CONFIG="$work/apt.conf"
    apt-get update -qq >"$work/log" 2>&1 || fail "apt-get update: $(tail -n 1 "$work/log")"
}

if [ -n "${SUITE:-}" ] || ! apt-cache show "$PACKAGE" >/dev/null 2>&1; then
    . /etc/os-release
    [ "${ID:-}" = debian ] || fail "no package $PACKAGE for ${PRETTY_NAME:-this system}: copy $HEADER into $folder"
    isolate
fi
(cd "$work" && apt-get download -qq "$PACKAGE" >log 2>&1) || fail "apt-get download: $(tail -n 1 "$work/log")"
dpkg-deb -x "$work"/"$PACKAGE"_*.deb "$work/unpacked"
found=$(find "$work/unpacked" -name "$HEADER" | head -n 1)
[ -n "$found" ] || fail "$PACKAGE holds no $HEADER"
mv "$found" "$folder/$HEADER"  # whole or not at all, whoever else fetches
echo "$folder/$HEADER is there"
