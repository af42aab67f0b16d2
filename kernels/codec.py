"""What to encode with: codec, dtype, parameters; and the sizes that follow from them alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from zipplan.kernels.native import CODECS, DTYPES, Spec, library
from zipplan.planner.errors import CodecError, nearest

TILED = ("window", "cascade")
ITEM_BYTES = {"u8": 1, "bf16": 2, "fp16": 2, "fp32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True)
class Codec:
    """One wire format with its parameters; sender and receiver must hold equal ones.

    `id`: raw, window, cascade, or delta (against an earlier version of the chunk that both sides hold). `dtype`: u8
    (any bytes; raw and delta only), bf16, fp16, fp32, fp8_e4m3 or fp8_e5m2.
    `slack`: bytes added to every tile's slot in the static region (multiple of 16). 0 is the exact form: what varies
    in size goes to the dynamic region. With enough slack (the slotted form) the dynamic region of nearly every frame
    is empty. `checksum`: frames carry one and decoding checks it. Raises CodecError on anything else.
    """

    id: str = "window"
    dtype: str = "bf16"
    slack: int = 0
    checksum: bool = False

    def __post_init__(self) -> None:
        if self.id not in CODECS:
            raise CodecError(f"codec {self.id!r} is unknown; {nearest(self.id, CODECS)}")
        if self.dtype not in DTYPES:
            raise CodecError(f"codec dtype {self.dtype!r} is unknown; {nearest(self.dtype, DTYPES)}")
        if self.id in TILED and self.dtype == "u8":
            raise CodecError(f"codec {self.id!r} needs a float dtype, found 'u8'; use codec 'raw' for plain bytes")
        most = library().zp_max_slack(CODECS.index(self.id), DTYPES.index(self.dtype))
        if self.slack % 16 or not 0 <= self.slack <= most:
            raise CodecError(
                f"slack of {self.id} {self.dtype}: expected a multiple of 16 from 0 to {most}, found {self.slack}"
            )

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @cached_property
    def key(self) -> tuple[int, int, int]:
        """(codec, dtype, slack) as the library numbers them."""
        return CODECS.index(self.id), DTYPES.index(self.dtype), self.slack

    def spec(self, params: Params | None = None) -> Spec:
        """For the library; what `params` leaves open is measured."""
        codec, dtype, slack = self.key
        params = params or Params()
        known = params.ranking is not None if self.id == "cascade" else (params.base, params.shift) != (None, None)
        spec = Spec(codec=codec, dtype=dtype, checksum=self.checksum, slack=slack, measure=not known)
        spec.base = -1 if params.base is None else params.base
        spec.shift = params.shift or 0 if self.id == "window" else 0
        spec.ranking[:] = params.ranking or (0,) * 16
        return spec


@dataclass(frozen=True)
class Params:
    """Encoder's choices that the frame itself carries; a decoder needs none. None: found from the data.

    `base`: one biased base exponent for every tile, clamped to what the dtype has (None: each tile finds its own from
    its mean exponent, as it suits normal data). `shift`: window only, added to the bases that tiles find, -3 to 3
    (None: measured from a sample of each chunk). `ranking`: cascade's symbols, most frequent first, a permutation of
    0-15: 0-14 are base + symbol, 15 is exponent 0 (None: measured from the same sample).
    """

    base: int | None = None
    shift: int | None = None
    ranking: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.base is not None and not 0 <= self.base <= 255:
            raise CodecError(f"window base: expected 0 to 255, found {self.base}")
        if self.shift is not None and not -3 <= self.shift <= 3:
            raise CodecError(f"window shift: expected -3 to 3, found {self.shift}")
        if self.ranking is not None and sorted(self.ranking) != list(range(16)):
            raise CodecError(f"ranking: expected a permutation of 0 to 15, found {self.ranking}")


def static_size(codec: Codec, n: int) -> int:
    """Bytes of header and static region of a frame of n elements; a multiple of 128, known before encoding."""
    return library().zp_static_size(*codec.key, elements(codec, n))


def max_dynamic_size(codec: Codec, n: int) -> int:
    """The most bytes that the dynamic region of a frame of n elements can take; exact: some input reaches it."""
    return library().zp_max_dynamic_size(*codec.key, elements(codec, n))


def max_encoded_size(codec: Codec, n: int) -> int:
    """The most bytes that a frame of n elements can take; exact: some input reaches it."""
    return static_size(codec, n) + max_dynamic_size(codec, n)


def elements(codec: Codec, n: int) -> int:
    """n, if one frame can hold that many. Tile offsets count the dynamic region in 4-byte units, in 32 bits."""
    most = 1 << (32 if codec.id in TILED else 40)
    if not 0 <= n <= most:
        raise CodecError(f"element count: expected 0 to {most} in one {codec.id} frame, found {n}; use several chunks")
    return n
