"""Prometheus' text format."""


def format_head(name: str, kind: str, text: str) -> str:
    """Format the HELP and TYPE lines of a metric."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def format_row(name: str, value: float, *labels: tuple[str, str]) -> str:
    """Format one sample of a metric."""
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
