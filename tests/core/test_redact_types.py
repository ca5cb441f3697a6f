"""What is of a secret type is hidden, whatever it is called and wherever it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel, Field, Secret, SecretBytes, SecretStr, field_serializer, model_serializer

from handrail.core import Redactor
from handrail.core.redact import HIDDEN

CANARY = "kestrel"


class Frozen(Struct, frozen=True):
    inside: Any


class Model(BaseModel):
    inside: Any


@dataclass
class Plain:
    inside: Any


class Card(str):
    """A type of one's own that is also something plain."""


@dataclass
class Account:
    number: str


OWN = Redactor(types=[Card, Account])


class Revealing(BaseModel):
    word: SecretStr
    city: str = "Oslo"

    @field_serializer("word")
    def reveal(self, word: SecretStr) -> str:
        return word.get_secret_value()


class Opened(BaseModel, arbitrary_types_allowed=True):
    inside: Frozen

    @field_serializer("inside")
    def open(self, inside: Frozen) -> str:
        return str(inside.inside.number)


class Renamed(BaseModel):
    word: Account = Field(serialization_alias="shown")


class Remade(BaseModel):
    word: Account

    @model_serializer
    def remade(self) -> dict[str, str]:
        return {"other": self.word.number}


class Left(BaseModel):
    word: Account = Field(exclude=True)
    city: str = "Oslo"


@pytest.mark.parametrize(
    "value",
    [
        *(SecretStr(CANARY), SecretBytes(CANARY.encode()), Secret[str](CANARY), Card(CANARY), Account(CANARY)),
        {"a": [Card(CANARY)]},
        {Card(CANARY): 1},
        (Account(CANARY),),
        Plain(SecretStr(CANARY)),
        Plain({"a": Card(CANARY)}),
        Frozen(Account(CANARY)),
        Model(inside=[Account(CANARY)]),
        Model(inside=Plain(Card(CANARY))),
        Model(inside=Frozen({"a": Model(inside=Card(CANARY))})),
        Revealing(word=SecretStr(CANARY)),
        Opened(inside=Frozen(Account(CANARY))),
        *(kind(word=Account(CANARY)) for kind in (Renamed, Remade, Left)),
    ],
    ids=repr,
)
def test_a_value_of_a_hidden_type_never_survives(value: Any) -> None:
    assert CANARY not in repr(OWN.value(value))
    assert CANARY not in OWN.output(value if not isinstance(value, str) else [value])


def test_a_model_without_secrets_is_shown_as_it_writes_itself() -> None:
    class Masked(BaseModel):
        number: str = CANARY
        city: str = "Oslo"

        @field_serializer("number")
        def mask(self, number: str) -> str:
            return f"…{number[-2:]}"

    assert OWN.value(Masked()) == {"number": "…el", "city": "Oslo"}
    assert OWN.value(Left(word=Account("x"))) == {"city": "Oslo"}
    assert OWN.value(Renamed(word=Account("x"))) == {"shown": HIDDEN}
    assert OWN.value(Revealing(word=SecretStr("x"))) == {"word": HIDDEN, "city": "Oslo"}


class BrokenMapping(Mapping[str, Any]):
    """A mapping that cannot be looked into."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("kestrel")

    def __iter__(self) -> Any:
        raise RuntimeError("kestrel")

    def __len__(self) -> int:
        return 1


class BrokenClass:
    """A value that does not even say what it is."""

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("kestrel")


@pytest.mark.parametrize("kind", ["mapping", "class"])
def test_a_value_whose_inspection_raises_is_hidden_as_a_whole(kind: str) -> None:
    redactor, broken = Redactor(), BrokenMapping() if kind == "mapping" else BrokenClass()

    assert redactor.value(broken) == "[redacted]"
    assert redactor.value({"name": broken}) == "[redacted]"
    assert "kestrel" not in redactor.output({"name": [broken]})
