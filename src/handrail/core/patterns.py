"""Regular expressions that are compiled on first use."""

import re
from functools import cached_property


class LazyPattern:
    """A regular expression that is compiled on first use, so that an import does not pay for it."""

    def __init__(self, source: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self._source = source
        self._flags = flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self._source, self._flags)
