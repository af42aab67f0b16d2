"""`zipplan inspect`: what a file's tensors look like to the codec."""

from __future__ import annotations

from typing import Any

import click

from zipplan.planner.cli.common import console, json_option, print_json, table

WORTH = 1.05  # a ratio below it saves less than one part in twenty: such a tensor is not worth a codec


@click.command(epilog="Example: zipplan inspect model.safetensors --json")
@click.argument("file")
@json_option
def inspect(file: str, as_json: bool) -> None:
    """Dtype, scale, shape and compressed size of every tensor in a .safetensors, .npy, .npz or .pt file.

    sigma: root mean square; kurtosis: 0 for normal data; floor: bits per element at the entropy of the exponents.
    """
    from zipplan.kernels.codec import ITEM_BYTES
    from zipplan.kernels.tensors import look, read_tensors

    rows: list[dict[str, Any]] = []
    for tensor in read_tensors(file):
        shape = look(tensor)
        raw_bits = 8 * ITEM_BYTES[tensor.dtype]
        best = min(shape.bits, key=shape.bits.__getitem__, default="raw")
        saved = raw_bits / shape.bits[best] if shape.bits else None
        worth = saved is not None and saved >= WORTH
        rows.append(
            {
                "tensor": tensor.name,
                "dtype": tensor.stored_as,
                "shape": list(tensor.shape),
                "bytes": tensor.data.nbytes,
                "sigma": shape.sigma,
                "kurtosis": shape.kurtosis,
                "zeros": shape.zeros,
                "floor_bits": shape.floor_bits,
                **{f"{name}_bits": bits for name, bits in shape.bits.items()},
                "ratio": saved if worth or saved is None else 1.0,  # what is not worth a codec goes as it is
                "codec": best if worth else "raw",
            }
        )
    total = sum(row["bytes"] for row in rows)
    sent = sum(row["bytes"] / row["ratio"] if row["codec"] != "raw" else row["bytes"] for row in rows)
    overall = total / sent if sent else None
    if as_json:
        print_json({"schema": 1, "bytes": total, "ratio": overall, "rows": rows})
        return
    right = ("shape", "sigma", "kurtosis", "zeros", "floor", "window", "cascade", "ratio")
    out = table(
        f"{file}: bits per element",
        [("tensor", "left"), ("dtype", "left"), *((n, "right") for n in right), ("use", "left")],
    )
    for row in rows:
        numbers = [("sigma", ".3g"), ("kurtosis", ".2f"), ("zeros", ".1%"), ("floor_bits", ".2f")]
        numbers += [("window_bits", ".2f"), ("cascade_bits", ".2f"), ("ratio", ".3f")]
        cells = ["n/a" if row.get(key) is None else format(row[key], form) for key, form in numbers]
        out.add_row(row["tensor"], row["dtype"], "x".join(map(str, row["shape"])) or "scalar", *cells, row["codec"])
    console().print(out)
    console().print(
        f"{len(rows)} tensors, {total} bytes; ratio of all: {'n/a' if overall is None else f'{overall:.3f}'}"
    )
