"""The Grafana file asks for metrics and labels that there are."""

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from handrail.monitor import Metrics

FILE = Path(__file__).parents[2] / "docs/grafana/handrail.json"


def test_every_panel_asks_for_a_metric_and_labels_that_exist() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    collectors = registry._collector_to_names  # pyright: ignore[reportPrivateUsage]
    labels = {name: set(getattr(one, "_labelnames", ())) for one, names in collectors.items() for name in names}
    dashboard = json.loads(FILE.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) > 10
    for expression in asked:
        for name in re.findall(r"handrail_\w+", expression):
            assert name in labels, name
            wanted = set(re.findall(r"(\w+)=", expression)) | {
                word.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for word in group.split(",")
            }
            assert wanted - {"le"} <= labels[name], (name, wanted)
