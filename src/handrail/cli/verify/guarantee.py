"""One guarantee and what became of it, and the report of all: as text and as JUnit XML."""

from collections.abc import Collection, Sequence
from typing import Final, Literal
from xml.etree import ElementTree

from msgspec import Struct

GuaranteeStatus = Literal["holds", "fails", "accepted", "not tried"]

_SHOWN: Final = {"holds": "holds", "fails": "FAILS", "accepted": "accepted", "not tried": "not tried"}


class Guarantee(Struct, frozen=True, kw_only=True):
    """What was checked, of the executor or of one tool."""

    name: str
    """Short, for `--accept`: `encryption`, `key`."""
    title: str
    tool: str | None = None
    status: GuaranteeStatus
    text: str = ""
    """What was seen, and what to do."""

    @property
    def is_failed(self) -> bool:
        """Whether it does not hold, and nobody has accepted that."""
        return self.status == "fails"

    def is_named_by(self, names: Collection[str]) -> bool:
        """Whether one of `name` and `name:tool` is among the names."""
        return self.name in names or f"{self.name}:{self.tool}" in names


def format_report(guarantees: Sequence[Guarantee]) -> str:
    """The report as text: the executor's guarantees, then those of each tool."""
    lines: list[str] = []
    tool: str | None = None
    for one in guarantees:
        if one.tool != tool:
            tool = one.tool
            lines.append(f"\n{tool}")
        lines.append(f"  {_SHOWN[one.status]:<10}{one.title}")
        if one.text and one.status != "holds":
            lines.append(f"            {one.text}")
    failed = [one for one in guarantees if one.is_failed]
    tried = [one for one in guarantees if one.status != "not tried"]
    lines.append(f"\n{len(tried) - len(failed)} of {len(tried)} guarantees hold or are accepted.")
    return "\n".join(lines)


def format_junit(guarantees: Sequence[Guarantee]) -> str:
    """The report as JUnit XML, which CI systems show."""
    counts = {
        "tests": str(len(guarantees)),
        "failures": str(sum(one.is_failed for one in guarantees)),
        "skipped": str(sum(one.status in ("not tried", "accepted") for one in guarantees)),
    }
    suite = ElementTree.Element("testsuite", {"name": "handrail verify", **counts})
    for one in guarantees:
        case = ElementTree.SubElement(suite, "testcase", {"classname": one.tool or "executor", "name": one.title})
        if one.is_failed:
            ElementTree.SubElement(case, "failure", {"message": one.text})
        elif one.status != "holds":
            ElementTree.SubElement(case, "skipped", {"message": one.text})
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
