#!/usr/bin/env bash
# Makes the virtual environment DIRECTORY with the pinned packages and this project in it, editable, and further packages
# with whatever they need; a further FILE.lock is a list of pins of its own, without what those need. The Makefile calls it.
# PYTHON=... chooses the Python; else the first of python3, python3.11 ... python3.14 that is new enough.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=${1:?usage: tools/venv.sh DIRECTORY [PACKAGE... [FILE.lock]]}
further=("${@:2}")
pins=
if [ ${#further[@]} != 0 ] && [[ ${further[-1]} == *.lock ]]; then
    pins=${further[-1]}
    unset 'further[-1]'
fi
log=$directory.log

stop() {
    printf 'gpu-failover: %s\n' "$1" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

[ "$(uname -s)" = Linux ] || stop "this needs Linux (pidfds, OFD locks), and here is $(uname -s): use a Linux machine, VM or container."

python=
for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
    if new_enough "$candidate"; then
        python=$candidate
        break
    fi
done
found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "no ${PYTHON:-python3}")
[ -n "$python" ] || stop "Python 3.11 or newer is needed, and here is $found: install one (apt install python3.11 python3.11-venv, dnf install python3.11) or name one: make PYTHON=/path/to/python3.11"

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    stop "$("$python" --version) here has no venv module: apt install $("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])') (or your system's package of that kind)."

# Without a home directory pip would keep its cache in /.
[ -n "${HOME:-}" ] || export PIP_NO_CACHE_DIR=1
export PIP_DISABLE_PIP_VERSION_CHECK=1

# What pip does now: on one line of a terminal, else a line every half a minute.
progress() {
    local began=$SECONDS said='^ *(Collecting|Processing|Downloading|Using cached|Building|Installing|Obtaining)'
    local every=30 form='%4d s  %s\n'
    [ ! -t 2 ] || every=1 form='\r\033[K%4d s  %s'
    while sleep "$every"; do
        # shellcheck disable=SC2059
        printf "$form" $((SECONDS - began)) "$(grep -E "$said" "$log" | tail -1 | cut -c1-88)" >&2 || true
    done
}

echo "making $directory with $("$python" --version): some minutes at most; $log has what pip says" >&2
rm -rf "$directory"
: >"$log"
progress &
shown=$!
trap 'kill "$shown" 2>/dev/null || true' EXIT
{
    "$python" -m venv "$directory" &&
        "$directory/bin/python" -m pip install --no-deps --requirement requirements.lock &&
        "$directory/bin/python" -m pip install --no-deps --no-build-isolation --editable . &&
        { [ ${#further[@]} = 0 ] || "$directory/bin/python" -m pip install "${further[@]}"; } &&
        "$directory/bin/python" -m pip check --quiet &&
        { [ -z "$pins" ] || "$directory/bin/python" -m pip install --no-deps --requirement "$pins"; }
} >"$log" 2>&1 </dev/null || {
    kill "$shown"
    cat "$log" >&2
    rm -rf "$directory" "$log"
    stop "the packages of requirements.lock${pins:+ or $pins} could not be installed; pip's own words are above."
}
kill "$shown"
[ ! -t 2 ] || printf '\r\033[K' >&2
rm -f "$log"
touch "$directory/.made"
