"""Documents with anything anywhere: the operations that can be used are tools, and nothing else happens."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from handrail import ConfigError
from handrail.errors import SourceError
from handrail.sources import OpenApi

DOCUMENTS = Path(__file__).parents[1] / "documents"
SHOP = yaml.safe_load((DOCUMENTS / "shop.yaml").read_text())
PETS = json.loads((DOCUMENTS / "swagger.json").read_text())
ODD: list[Any] = [
    *(None, True, 0, -1.5, "", "x", "\u0000", "http://[", [], {}, [1], [None], {"a": 1}, {"": {}}, {"type": 7}),
    *({"$ref": 5}, {"$ref": "#/paths"}, {"$ref": "#/components/schemas/Line"}, {"in": "path", "name": "id"}),
    *([{"$ref": "#/x"}], {"type": "object", "properties": []}, {"name": 7, "in": "query"}, {"required": [[]]}),
]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


@pytest.mark.parametrize("document", [SHOP, PETS], ids=["3.0", "2.0"])
@given(data=st.data())
def test_a_value_of_the_wrong_kind_breaks_no_more_than_its_operation(
    document: dict[str, Any], data: st.DataObject
) -> None:
    changed = copy.deepcopy(document)
    place = data.draw(st.sampled_from(places(document)[1:]))
    holder: Any = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = copy.deepcopy(data.draw(st.sampled_from(ODD)))

    api = OpenApi(changed, bearer="env:TOKEN")
    try:
        tools = api.tools()
    except (SourceError, ConfigError):
        return
    if place[0] != "paths" or len(place) > 2:  # Else a path, or all of them, is not there any more.
        assert len(tools) + len(api.skipped) == (6 if document is SHOP else 4)
    for tool in tools:
        with pytest.raises(ValueError, match="not_an_argument"):
            tool.parse('{"not_an_argument": 1}')
