"""Prometheus' text format."""


def format_head(name: str, kind: str, text: str) -> str:
    """What a metric is."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def format_row(name: str, value: float, *labels: tuple[str, str]) -> str:
    """One value of a metric."""
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
