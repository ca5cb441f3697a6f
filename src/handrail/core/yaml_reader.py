"""Reads configuration files, and YAML by its nodes, which know their lines: an error names the file and the line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from handrail.errors import ConfigError, MissingExtraError, shorten

YamlPath = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""

_MAX_BYTES: Final = 5_000_000


def read_config_file(path: Path) -> str:
    """Return the text of a configuration file, or raise `ConfigError`."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: the file must have at most {_MAX_BYTES:,} bytes.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the file cannot be read: {error}.") from error


class YamlReader:
    """Reads one YAML text; a key must be text, and must not be in a mapping twice."""

    def __init__(
        self,
        text: str,
        *,
        source: str,
        max_values: int,
        allow_aliases: bool = True,
        check_plain: Callable[[str, str], str | None] | None = None,
    ) -> None:
        """`source` is what errors call the text; `check_plain` gets the tag and the text of each plain scalar, and
        returns why it is refused."""
        try:
            import yaml  # noqa: PLC0415  # optional
        except ImportError as error:
            raise MissingExtraError("pyyaml", extra="yaml") from error
        self._yaml: Any = yaml
        self._source = source
        self._max_values = max_values
        self._left = max_values
        self._check_plain = check_plain
        self._open: list[Any] = []
        """The nodes that are being read, from the outermost to the innermost."""
        try:
            if not allow_aliases:
                self._refuse_aliases(text)
            self.root: Any = self._yaml.compose(text, Loader=yaml.SafeLoader)
            """The outermost node; None if the text is empty."""
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = f"this is not YAML: {getattr(error, 'problem', error)}"
            raise ConfigError(f"{source}:{mark.line + 1 if mark else 1}: {problem}.") from error
        except RecursionError as error:
            raise self.build_error(None, "it is nested too deeply") from error
        except (ValueError, OverflowError) as error:  # An escape such as "\\Uffffffff".
            raise self.build_error(None, f"this is not YAML: {error}") from error

    def read_mapping(self, node: Any, expected: str) -> dict[str, tuple[Any, Any]]:
        """Return the nodes of each key and its value; `expected` is the error for a node that is not a mapping."""
        if not isinstance(node, self._yaml.MappingNode):
            raise self.build_error(node, expected)
        found: dict[str, tuple[Any, Any]] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, self._yaml.ScalarNode):
                raise self.build_error(key_node, "a key must be text")
            key = str(key_node.value)
            if key in found:
                raise self.build_error(key_node, f"the key {key!r} is here twice")
            found[key] = (key_node, value_node)
        return found

    def read_list(self, node: Any, expected: str) -> list[Any]:
        """Return the nodes of a list; `expected` is the error for a node that is not one."""
        if not isinstance(node, self._yaml.SequenceNode):
            raise self.build_error(node, expected)
        return node.value

    def read_value(self, node: Any, lines: dict[YamlPath, int] | None = None) -> Any:
        """Return the value of a node; `lines` gets the line of each place in it."""
        try:
            return None if node is None else self._read(node, (), {} if lines is None else lines)
        except RecursionError as error:
            raise self.build_error(node, "it is nested too deeply") from error

    def build_error(self, node: Any, problem: str) -> ConfigError:
        """An error that names the source and the line of a node."""
        return ConfigError(f"{self._source}:{get_line(node)}: {problem.removesuffix('.')}.")

    def _refuse_aliases(self, text: str) -> None:
        for token in self._yaml.scan(text):
            if isinstance(token, self._yaml.AliasToken):
                raise self.build_error(token, "aliases are not supported; write the value out")

    def _read(self, node: Any, place: YamlPath, lines: dict[YamlPath, int]) -> Any:
        lines.setdefault(place, get_line(node))
        self._left -= 1
        if self._left < 0:  # With aliases, a short text can expand without limit.
            raise self.build_error(node, f"it must have at most {self._max_values:,} values")
        if any(node is opened for opened in self._open):
            raise self.build_error(node, "it refers to itself")
        if isinstance(node, self._yaml.CollectionNode) and str(node.tag).rpartition(":")[2] not in ("map", "seq"):
            raise self.build_error(node, f"{node.tag} is not supported; write a plain mapping or list")
        self._open.append(node)
        try:
            if isinstance(node, self._yaml.MappingNode):
                nodes = self.read_mapping(node, "")
                lines.update({(*place, key): get_line(key_node) for key, (key_node, _) in nodes.items()})
                return {key: self._read(value, (*place, key), lines) for key, (_, value) in nodes.items()}
            if isinstance(node, self._yaml.SequenceNode):
                return [self._read(one, (*place, index), lines) for index, one in enumerate(node.value)]
            return self._read_scalar(node)
        finally:
            self._open.pop()

    def _read_scalar(self, node: Any) -> Any:
        tag, text = str(node.tag), str(node.value)
        if self._check_plain is not None and node.style is None and (problem := self._check_plain(tag, text)):
            raise self.build_error(node, problem)
        loader = self._yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        # A text that does not fit its tag: `!!bool perhaps`, `!!timestamp soon`, `2030-13-01`.
        except (self._yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            problem = getattr(error, "problem", None) or f"{shorten(repr(text))} cannot be read as {tag}: {error}"
            raise self.build_error(node, problem) from error
        finally:
            loader.dispose()


def get_line(node: Any) -> int:
    """The line of a node; 1 if there is none."""
    return cast(int, node.start_mark.line + 1) if node is not None else 1


def find_surprise(tag: str, text: str) -> str | None:
    """Return why a plain scalar is refused: YAML 1.1 gives it another type than most people expect."""
    kind = tag.rpartition(":")[2]
    surprises = {
        "bool": text not in ("true", "false"),
        "int": re.fullmatch(r"-?(0|[1-9]\d*)", text) is None,
        "float": re.fullmatch(r"-?\d+\.\d+([eE][+-]?\d+)?", text) is None,
        "timestamp": True,
    }
    if not surprises.get(kind, False):
        return None
    return f"`{text}` would be read as a {kind}; write it in quotes if it is a text, or as a plain value"
