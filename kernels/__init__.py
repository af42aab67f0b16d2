"""The lossless codec: one wire format (docs/wire-format.md), several backends.

A chunk of n elements becomes a **frame**: a static region, whose size follows from codec and n alone, and a dynamic
region, whose size depends on the data and stands in the header, at the start of the static region. So a collective can
send the static regions at once and needs no exchange of sizes:

    codec = Codec("window", "bf16")
    stride = static_size(codec, n)                                  # equal chunks: constant stride
    static = np.empty(P * stride, np.uint8)
    dynamic = np.empty(P * max_dynamic_size(codec, n), np.uint8)    # worst case
    sizes = encode(codec, chunks, static, dynamic).sizes            # int64[P]; packed, multiples of 128
    ...                                                             # exchange static; then:
    sizes = dynamic_sizes(codec, got_static, [n] * P)               # of what comes next
    ...                                                             # exchange dynamic (by sizes); then:
    decode(codec, got_static, got_dynamic, outs)                    # or offsets=[…] where parts are not packed
    decode_reduce(codec, got_static, got_dynamic, outs, senders=P)  # FP32, in sender order, rounded once

Codec "delta" codes chunks against an earlier version that both sides hold: `references=[...]` in encode and decode. The
frame carries a digest of it, so that a receiver with another version gets a CodecError, never other bytes.

All arrays are contiguous numpy arrays on the CPU (a torch tensor's `.numpy()` view), sizes are bytes, and threads=1
unless told. Equal input, codec and params give equal bytes on every backend. Importing this loads no compiler or GPU.
"""

from zipplan.kernels.batch import (
    Encoded,
    Frame,
    decode,
    decode_frame,
    decode_reduce,
    dynamic_sizes,
    encode,
    encode_frame,
)
from zipplan.kernels.codec import Codec, Params, max_dynamic_size, max_encoded_size, static_size

__all__ = [
    "Codec",
    "Encoded",
    "Frame",
    "Params",
    "decode",
    "decode_frame",
    "decode_reduce",
    "dynamic_sizes",
    "encode",
    "encode_frame",
    "max_dynamic_size",
    "max_encoded_size",
    "static_size",
]
