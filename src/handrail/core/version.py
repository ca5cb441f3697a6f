"""The version of the installed distribution; loaded on first use."""

from importlib.metadata import PackageNotFoundError, version


def _read_version() -> str:
    try:
        return version("handrail")
    except PackageNotFoundError:  # A checkout on the path of Python, not installed.
        return "unknown"


__version__: str = _read_version()
