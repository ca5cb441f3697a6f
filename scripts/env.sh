# Sourced by the other scripts: `prepare VENV REQUIREMENTS` makes a virtual environment with Handrail in it, once.

say() { printf '==> %s\n' "$*" >&2; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Sets $python: $PYTHON if it is set, else the first on the path that is new enough.
choose_python() {
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.13 python3.12 python3.11 python; fi
    for python in "$@"; do
        new_enough "$python" && return
    done
    python=$1
    found=$("$python" --version 2>&1) || found="$python does not run"
    say "Handrail needs Python 3.11 or newer, and found: $found."
    say "Name a newer one: PYTHON=python3.12 $0"
    exit 1
}

install_pinned() {
    # uv is several times faster, but does not read pip's configuration: where it cannot install, pip may.
    pinned_uv=$(awk '/^uv==/ { on = 1 } on { print } on && !/\\$/ { exit }' "$requirements")
    if [ -n "$pinned_uv" ]; then
        printf '%s\n' "$pinned_uv" >"$venv/uv.txt"
        if "$venv/bin/python" -m pip install -qq --require-hashes -r "$venv/uv.txt" &&
            VIRTUAL_ENV="$PWD/$venv" "$venv/bin/uv" pip sync -q --require-hashes "$requirements"; then
            return
        fi
        say "uv could not install them; trying with pip"
    fi
    "$venv/bin/python" -m pip install -qq --require-hashes -r "$requirements"
}

prepare() {
    venv=$1 requirements=$2
    choose_python
    # The environment is new when the interpreter or the place changed, and brought up to date when the pins changed.
    home="$("$python" -c 'import sys; print(sys.version)' | tr -d '\n') $PWD"
    key=$(cat "$requirements" pyproject.toml scripts/env.sh | cksum)
    if [ "$(cat "$venv/home" 2>/dev/null)" != "$home" ]; then
        say "making $venv with $("$python" --version)"
        "$python" -m venv --clear "$venv" || {
            say "Python's venv module did not work (on Debian it is in the package python3-venv)."
            exit 1
        }
        printf '%s\n' "$home" >"$venv/home"
    fi
    [ "$(cat "$venv/key" 2>/dev/null)" = "$key" ] && return
    say "installing $(grep -c '==' "$requirements") pinned packages into $venv"
    install_pinned
    "$venv/bin/python" -m pip install -qq --no-deps --no-build-isolation -e .
    printf '%s\n' "$key" >"$venv/key"
}
