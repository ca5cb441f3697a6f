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
    for guarantee in guarantees:
        if guarantee.tool != tool:
            tool = guarantee.tool
            lines.append(f"\n{tool}")
        lines.append(f"  {_SHOWN[guarantee.status]:<10}{guarantee.title}")
        if guarantee.text and guarantee.status != "holds":
            lines.append(f"            {guarantee.text}")
    failed = [guarantee for guarantee in guarantees if guarantee.is_failed]
    tried = [guarantee for guarantee in guarantees if guarantee.status != "not tried"]
    # As for `--accept`.
    names = ", ".join(f"{failure.name}:{failure.tool}" if failure.tool else failure.name for failure in failed)
    end = f"; these fail: {names}" if failed else ""
    lines.append(f"\n{len(tried) - len(failed)} of {len(tried)} guarantees hold or are accepted{end}.")
    return "\n".join(lines)


def format_junit(guarantees: Sequence[Guarantee]) -> str:
    """The report as JUnit XML, which CI systems show."""
    counts = {
        "tests": str(len(guarantees)),
        "failures": str(sum(guarantee.is_failed for guarantee in guarantees)),
        "skipped": str(sum(guarantee.status in ("not tried", "accepted") for guarantee in guarantees)),
    }
    suite = ElementTree.Element("testsuite", {"name": "handrail verify", **counts})
    for guarantee in guarantees:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": guarantee.tool or "executor", "name": guarantee.title}
        )
        if guarantee.is_failed:
            ElementTree.SubElement(case, "failure", {"message": guarantee.text})
        elif guarantee.status != "holds":
            ElementTree.SubElement(case, "skipped", {"message": guarantee.text})
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
