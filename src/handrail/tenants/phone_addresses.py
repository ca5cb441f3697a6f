"""Addresses that a phone call can be transferred to, and the numbers that callers dial."""

from typing import Any, Final

from handrail.core.lazy_loading import LazyPattern

_NUMBER: Final = LazyPattern(r"\+[1-9][0-9]{6,14}")
_SEPARATORS: Final = LazyPattern(r"[ .()\-]")
_HOST: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*)"
_SIP: Final = LazyPattern(
    rf"sips?:[A-Za-z0-9_.!~*'&=+$,;?/%-]{{1,128}}@(?:{_HOST}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?"
    r"(?:;[A-Za-z0-9_.-]{1,64}(?:=[A-Za-z0-9_.-]{1,128})?){0,8}"
)


def check_is_text(number: Any) -> Any:
    """Refuse a telephone number that YAML read as a number, because it stands without quotes."""
    if isinstance(number, int) and not isinstance(number, bool):
        raise ValueError("must be text; write the number in quotes, such as '+33100000000'")
    return number


def normalise_number(number: str) -> str:
    """A telephone number in the international form: `+33 1 00 00 00 00` becomes `+33100000000`."""
    compact = _SEPARATORS.compiled.sub("", number.strip())
    if not _NUMBER.compiled.fullmatch(compact):
        raise ValueError("must be an international telephone number such as '+33100000000'")
    return compact


def normalise_target(target: str) -> str:
    """The `tel:` or `sip:` address of a target: a telephone number, or either kind of address.

    Anything that could mean more than one address (headers, spaces, other schemes) is refused.
    """
    text = target.strip()
    scheme, _, rest = text.partition(":")
    if scheme.lower() == "tel" and rest:
        text = rest
    if text.startswith("+"):
        return f"tel:{normalise_number(text)}"
    if scheme.lower() in ("sip", "sips") and _SIP.compiled.fullmatch(text := f"{scheme.lower()}:{rest}"):
        return text
    raise ValueError("must be 'sip:name@host' or an international telephone number such as '+33100000000'")
