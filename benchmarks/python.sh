# The environment of the benchmarks, for the scripts beside this one.

# toolcall needs 3.12, and one Python for all of them makes the ratios fair. Nothing is downloaded.
find_python() {
    uv=$(command -v uv || echo .venv-dev/bin/uv)
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python \
        "$("$uv" python find --no-python-downloads --no-project "$1" 2>/dev/null)"; do
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            PYTHON=$candidate
            return
        fi
    done
    say "The benchmarks need Python $1 (the package toolcall does), and there is none here."
    say "Install it, so that python$1 is on the path, or in pyenv's folder, or where uv finds it."
    exit 1
}

find_python 3.12
prepare benchmarks/.venv benchmarks/requirements.txt
# A copy, as users have it, and so that an edit during the run does not get in.
"$venv/bin/python" -m pip install -qq --no-deps --no-build-isolation --force-reinstall .

# What would change the figures, or send them away. Bytecode is kept, as it is in production.
unset PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONASYNCIODEBUG PYTHONDEVMODE
export PYTHONPYCACHEPREFIX="$PWD/benchmarks/.venv/pycache" MPLBACKEND=svg
export OPENAI_AGENTS_DISABLE_TRACING=1 LANGSMITH_TRACING=false FASTMCP_CHECK_FOR_UPDATES=off
