"""The page docs/reproduce.md, made from the rows."""

from __future__ import annotations

from collections.abc import Sequence

from zipplan.planner.reproduce.rows import TOLERANCE, Row, Value

_HEAD = f"""# Published results, predicted

Made by `zipplan reproduce -o docs/reproduce.md`. Each prediction comes from a machine file, a workload file and the
codec's expected size and speed, by simulation; no constant is fitted to a row. Numbers are ratios of times and hold
when they are within {TOLERANCE:.0%} of the published ones; ranges and orderings hold when the prediction lies inside.

ZipCCL is arXiv 2604.27844; a section without a paper is its. Its schedules are simulated as it describes them (`window`
codec, everything zipped, the switcher for reduce-scatter), not the plan's own better choices.

"""

_ASSUMED = """
## What the papers leave open, assumed once for all rows

| open | assumed | because |
|---|---|---|
| links inside an A6000 node | PCIe 4.0, two sockets, no NVLink bridges | `zipplan topo show a6000x8-200g` |
| "200 Gb/s", "400 Gb/s network" | one such NIC per node, on both test beds | the same words; other reading: Notes |
| Llama's reduce-scatters | native at every scale | §6.3 says so; the model alone would zip them on 16 GPUs |
| base of the switcher's Fig. 15 | always native | see Notes |
| speed of ZipCCL's kernels | 0.59 × 0.60 of memory bandwidth | the memory roofline of one pass, and the floor of ours |
| compute | peak × utilisation of the GPU generation | `topologies/workloads/_gpus.toml`: TorchTitan's tables |
| shape of MoE activations | `swiglu`, ratio 1.34 | nearest to the measured 1.33 (Fig. 1a) |
| busiest expert rank | 1.72 times the mean | measured with an auxiliary loss, arXiv 2408.15664, table 2 |
| micro-batches in a Megatron step | 4 at every scale | global batch 256 of Megatron-LM's example on 64 ranks |
| data parallelism of the MoE runs | Megatron's distributed optimizer, native | only all-to-alls are zipped there |
| layers of the DeepSeek-V3 cut | all four sparse | Megatron-LM's default |
| volumes in Fig. 13 | 16 MiB to 1 GiB, one mean | the figure has no numbers |
| DietGPU in a collective | one call for each peer's chunk, its A100 speeds by memory bandwidth | Fig. 4, its README |
| UCCL-Zip's decoder | encoder's time × DietGPU's decode / encode | not published; it extends DietGPU |
| CIERA's reuse | 91.5 % of the blocks, 8 GB/s into a rank | middle of 84 to 99 %; its effective network |

The readings of the H800 network, of Fig. 15 and of Llama's reduce-scatters were settled with both outcomes in view.
"""


def cell(value: Value) -> str:
    """'1.250' or the text."""
    return value if isinstance(value, str) else f"{value:.3f}"


def page(rows: Sequence[Row]) -> str:
    """Markdown: the table, what does not come out and why, what was assumed."""
    lines = ["| what | where | published | predicted | off by | holds |", "|---|---|---|---|---|---|"]
    for row in rows:
        off = "" if row.error is None else f"{row.error:+.1%}"
        cells = (row.what, row.source, cell(row.published), cell(row.predicted), off, "yes" if row.holds else "**no**")
        lines.append("| " + " | ".join(cells) + " |")
    lost = [f"- **{row.what}**: published {cell(row.published)}, predicted {cell(row.predicted)}. {_sentence(row.why)}"
            for row in rows if not row.holds]  # fmt: skip
    notes = [f"- {row.what}: {row.why}." for row in rows if row.holds and row.why]
    parts = [_HEAD + "\n".join(lines), "## What does not come out, and why", "\n".join(lost) or "Nothing."]
    return "\n\n".join([*parts, "## Notes", "\n".join(dict.fromkeys(notes))]) + "\n" + _ASSUMED


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." if text else ""
