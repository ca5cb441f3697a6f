"""Converting values to JSON text and to text that a model or a person can read; reading durations."""

import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from handrail.core.lazy_loading import LazyModule, LazyPattern
from handrail.errors import ConfigError

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


def compact_json(value: Any) -> str:
    """Serialize a JSON-like value as compact JSON; raises `ValueError` for a value that has no JSON form.

    Pydantic models, dataclasses, dates, UUIDs, Decimals, enums and sets are written as Pydantic writes them. Numbers
    that JSON does not have become the strings "NaN", "Infinity" and "-Infinity"; lone surrogates, which
    UTF-8 cannot encode, are replaced.
    """
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except PydanticSerializationError as error:
        if "UnicodeEncodeError" not in str(error):
            raise ValueError(str(error)) from error
    try:
        clean = _replace_surrogates(value)
        return to_json(_replace_surrogates(to_jsonable_python(clean)), inf_nan_mode="strings").decode()
    except (PydanticSerializationError, RecursionError) as error:
        raise ValueError(str(error)) from error


def faithful_json(value: Any) -> str:
    """Serialize arguments that arrived as values, unchanged; raises `ValueError` for a value that has no JSON form.

    What a parser must refuse (NaN, an escaped lone surrogate) is kept, so that the parser still refuses it.
    """
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except PydanticSerializationError as error:
        if "UnicodeEncodeError" not in str(error):
            raise ValueError(str(error)) from error
    try:
        return json.dumps(value, default=to_jsonable_python, separators=(",", ":"))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def quick_json(value: Any) -> str:
    """`compact_json` in about 60 % of the time, of a value that is JSON already: dicts, lists, texts, numbers …

    A float from 1e16 on has no sign in its exponent: `1e16` in place of `1e+16`.
    """
    try:
        text = _QUICK.encode(value).decode()
        if "null" not in text or not _has_not_finite(value):
            return text
    except (TypeError, UnicodeEncodeError, OverflowError):
        pass
    return compact_json(value)


def copy_json(value: Any) -> Any:
    """A copy of a JSON value as plain dicts and lists: whoever changes it changes nothing else."""
    if isinstance(value, dict):
        return {key: copy_json(member) for key, member in cast(dict[Any, Any], value).items()}
    return [copy_json(item) for item in cast(list[Any], value)] if isinstance(value, list | tuple) else value


_CONTROL: Final = LazyPattern(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_CANONICAL: Final = msgspec.json.Encoder(order="deterministic")
_QUICK: Final = msgspec.json.Encoder()


def canonical_json(value: Any) -> str:
    """Serialize a value with sorted keys and no spaces, so that only equal values have equal text.

    The value must be JSON-like. `1` and `1.0` are different values; so are `None` and a number that is not finite.
    """
    try:
        text = _CANONICAL.encode(value).decode()
        if "null" not in text or not _has_not_finite(value):
            return text
    except (TypeError, UnicodeEncodeError):  # Keys that are not strings, and lone surrogates.
        pass
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _has_not_finite(value: Any) -> bool:
    """Whether a value contains NaN or an infinity, which the encoder writes as `null`."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_not_finite, cast(dict[Any, Any], value).values()))
    return isinstance(value, list | tuple) and any(map(_has_not_finite, cast(list[Any], value)))


def _write_number(text: str) -> Any:
    """A number with a fraction or an exponent by its value: `500.0`, `5e2` and `500` are one number."""
    number = Decimal(text).normalize(_EXACT)
    if number.adjusted() >= _MAX_DIGITS or number.as_tuple().exponent < -_MAX_DIGITS:  # pyright: ignore[reportOperatorIssue]
        return msgspec.Raw(str(number).encode())
    return msgspec.Raw(format(number if number else Decimal(), "f").encode())


_EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_MAX_DIGITS: Final = 400
"""Numbers with more are written with an exponent: `1e999999999` is not written out."""
_BY_VALUE: Final = msgspec.json.Decoder(float_hook=_write_number)


def normalize_numbers(text: str) -> str:
    """JSON text with sorted keys, no spaces, and numbers by value. Text that is not JSON stays as it is."""
    try:
        return _CANONICAL.encode(_BY_VALUE.decode(text)).decode()
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
        pass
    try:  # A lone surrogate, or an integer of thousands of digits.
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


_FRACTION: Final = LazyPattern(r"[0-9][.eE]")


def normalize_canonical(text: str) -> str:
    """`normalize_numbers` of text that has sorted keys and no spaces already: most has no number to change."""
    return text if _FRACTION.compiled.search(text) is None else normalize_numbers(text)


def is_same_json(text: str, other: str) -> bool:
    """Whether two JSON texts have the same value; no text is an empty object."""
    return text == other or normalize_numbers(text or "{}") == normalize_numbers(other or "{}")


def encodable(text: str) -> str:
    """Replace lone surrogates, so that the text can be encoded as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def normalize_unicode(text: str, form: Literal["NFC", "NFKC", "NFKD"] = "NFKC") -> str:
    """A text in a normal form of Unicode, in linear time.

    `unicodedata.normalize` sorts marks that follow each other, in a time that grows with the square of their number:
    200,000 of them hold up all threads for 80 seconds. So a long text is normalized in pieces, each up to a letter or a
    punctuation mark that does not join what is before it; only where there is none, among hundreds of marks, the forms
    can differ.
    """
    if len(text) <= _PIECE or text.isascii():
        return unicodedata.normalize(form, text)
    return "".join([unicodedata.normalize(form, piece) for piece in _NORMALIZED_PIECES.compiled.findall(text)])


_PIECE: Final = 256
_NORMALIZED_PIECES: Final = LazyPattern(
    # Half-width marks, and vowels and ends of Korean syllables, are letters that join what is before them.
    rf".{{1,{_PIECE}}}(?=[\x00-\x7f\u2010-\u205e\u3000-\u3029]"
    rf"|[^\W\u1160-\u11ff\u3131-\u318e\ud7b0-\ud7ff\uff9e-\uffdc]|\Z)|.{{{_PIECE}}}",
    re.DOTALL,
)


def is_storable(text: str) -> bool:
    """Whether a database can store a text as it is: without half of a surrogate pair, and without a zero character."""
    return text.isprintable() or ("\0" not in text and encodable(text) == text)


def escape_special_tokens(text: str) -> str:
    """Change what a model could read as a special token, such as `<|im_end|>`; drop all control characters but newlines
    and tabs."""
    if _CONTROL.compiled.search(text):
        text = _CONTROL.compiled.sub("", text)
    return encodable(text).replace("<|", "< |")


UNSEEN: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""What no screen shows, or what changes the order in which a line is shown, as a part of a pattern's set."""
_INVISIBLE: Final = LazyPattern(
    f"[\x00-\x08\x0b-\x1f\x7f-\x9f{UNSEEN}\u200c\u200d\u2028\u2029\ufe00-\ufe0f\ud800-\udfff]"
)
"""The same, with the joiners and the selectors of scripts and emoji, and what a terminal would obey."""


def escape_invisible(text: str) -> str:
    """A text for a person, with an escape such as `\\u202e` for whatever they would not see as it is."""
    return _INVISIBLE.compiled.sub(_escape, text)


def escape_line(text: str) -> str:
    """The same for one line of a list: a text of somebody else cannot begin a line of its own."""
    return escape_invisible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(match: re.Match[str]) -> str:
    """The escape of one character, as JSON has it: two of them above U+FFFF."""
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            return encodable(value)
        case dict():
            items = cast(dict[Any, Any], value).items()
            return {encodable(key) if isinstance(key, str) else key: _replace_surrogates(item) for key, item in items}
        case list() | tuple() | set() | frozenset():
            return [_replace_surrogates(item) for item in cast(list[Any], value)]
        case _:
            return value


def join_names(names: Collection[str], *, limit: int = 8) -> str:
    """The first names of several, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(islice(names, limit)) + more


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_duration(text: str) -> float:
    """Seconds from `90`, `90s`, `5m`, `2h` or `7d`; `ConfigError` for anything else."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1.0)
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise ConfigError(f"a duration must be like 90s, 5m, 2h or 7d, got {text!r:.50}.")
    return int(number) * unit


def suggest(name: object, known: Iterable[object], *, otherwise: str = ".") -> str:
    """The end of an error message about an unknown name: the known one that is most like it, or `otherwise`."""
    near = difflib.get_close_matches(str(name), [str(candidate) for candidate in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else otherwise
