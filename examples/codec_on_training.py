"""Ratio of each codec on bf16 weights, gradients and activations of a small transformer that learns from source code.

Run: python examples/codec_on_training.py [STEPS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zipplan.kernels import tensors

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
TEXT = "".join(p.read_text(errors="ignore") for p in sorted(Path(torch.__file__).parent.glob("*.py"))[:40]).encode()
WIDTH, CONTEXT, BATCH = 128, 32, 16
seen: dict[str, Tensor] = {}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 512), nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        inner = F.silu(self.gate(self.norm2(x))) * self.up(self.norm2(x))
        seen["activation: SwiGLU"], seen["activation: residual"] = inner.detach(), x.detach()
        return x + self.down(inner)


def report(step: int) -> None:
    values = {f"{kind}: {n}": t for n, w in WATCHED.items() for kind, t in (("weight", w), ("gradient", w.grad))}
    for name, tensor in (values | seen).items():
        raw = tensor.detach().bfloat16().contiguous().view(torch.uint8).numpy().reshape(-1)
        shape = tensors.look(tensors.Tensor(name, "bf16", "bfloat16", tuple(tensor.shape), raw))
        bits = "  ".join(f"{codec} {16 / b:.3f}x" for codec, b in shape.bits.items())
        print(f"{step:5d}  {name:24s} kurtosis {shape.kurtosis:7.2f}  ideal {16 / shape.floor_bits:.3f}x  {bits}")


torch.manual_seed(0)
data = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
model = nn.Sequential(nn.Embedding(256, WIDTH), Block(), Block(), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256))
WATCHED = {"up": model[2].up.weight, "qkv": model[2].qkv.weight}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, STEPS + 1):
    batch = torch.stack([data[i : i + CONTEXT + 1] for i in torch.randint(len(data) - CONTEXT - 1, (BATCH,))])
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (1, STEPS):
        report(step)
