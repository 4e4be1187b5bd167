"""Memory kept for the backward pass: float32 against W8A8E8 by kernel, in one table.

    python benchmarks/saved_memory.py [--only resnet20] [--layers] [--json memory.json]

Prints, per model, MiB of distinct storages that a training forward pass keeps alive (parameters,
buffers and inputs left out), the ratio to float32, and the codes of the converted layers relative
to the float32 values of the same operands, at 8 bits and with max_bits=4. --layers lists who keeps
what with `native`. Runs in seconds and times nothing: any machine gives the same figures.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.files import write_json
from bitcycle.memory import SavedBytes, saved_bytes
from bitcycle.tables import text_table
from bitcycle_lab.models import build_model
from bitcycle_lab.models.transformer_lm import DecoderLayer
from bitcycle_lab.train.run_directory import measurement_info


@dataclass(frozen=True)
class Workload:
    """A float model in training mode, its batch, what it is, and the most it should keep."""

    model: nn.Module
    inputs: Tensor
    what: str
    target: float


class Block(nn.Module):
    """A plain pre-norm transformer block whose two attention products are modules."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.qk, self.pv = bc.MatMul(), bc.MatMul()
        self.softmax, self.activation = nn.Softmax(-1), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )  # each (batch, heads, length, width / heads)
        scores = self.qk(q, k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = self.pv(self.softmax(scores), v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return x + self.down(self.activation(self.up(self.norm2(x))))


def _blocks(make: Callable[[], nn.Module], what: str) -> Workload:
    said = f"two {what} of width 512, hidden 2048, 8 heads; batch 8 of 256 positions"
    return Workload(nn.Sequential(make(), make()), torch.randn(8, 256, 512), said, target=0.65)


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(
        512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


def _resnet20() -> Workload:
    model = build_model("resnet20", width=16).to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    return Workload(model, images, "width 16; batch 64 of 32 x 32 pixels", target=0.70)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet20": _resnet20,
    "decoder": lambda: _blocks(
        lambda: DecoderLayer(512, 2048, 8, 0.1), "layers of transformer_lm with ReLU, dropout 0.1"
    ),
    "encoder": lambda: _blocks(
        _encoder,
        "nn.TransformerEncoderLayer with GELU, whose float32 attention is fused and keeps less",
    ),
    "prenorm": lambda: _blocks(
        lambda: Block(512), "blocks with GELU and a softmax between two MatMul modules"
    ),
}


def measure(load: Workload, kernel: str | None, *, bits: int = 8) -> SavedBytes:
    """Of a copy at W8A8E8 (or as few bits as `bits`), or as it is in float32."""
    model = copy.deepcopy(load.model)
    if kernel is not None:
        bc.quantize_model(model, kernel=kernel, max_bits=bits)
        bc.set_precision(model, f"w{bits}a{bits}e{bits}")
    return saved_bytes(model, load.inputs)


def share_of_codes(codes: SavedBytes, values: SavedBytes) -> float:
    """Codes of all converted layers over the float32 values of the same operands.

    Of all together: layers that read one tensor share what they keep of it.
    """
    return sum(codes.codes_by_layer.values()) / sum(
        values.by_layer[name] for name in codes.codes_by_layer
    )


def main() -> None:
    """Measure the chosen models and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    parser.add_argument("--layers", action="store_true", help="also list who keeps what")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args()
    began = time.monotonic()
    torch.manual_seed(0)
    rows = []
    plain: list[dict[str, Any]] = []
    sizes: dict[str, str] = {}
    for name in options.only or WORKLOADS:
        load = WORKLOADS[name]()
        sizes[name] = load.what
        before, simulated = measure(load, None), measure(load, "simulate")
        native = measure(load, "native")
        for kernel, saved in (("simulate", simulated), ("native", native)):
            ratio = saved.num_bytes / before.num_bytes
            plain.append(
                {
                    "model": name,
                    "kernel": kernel,
                    "float32_bytes": before.num_bytes,
                    "bytes": saved.num_bytes,
                    "ratio": ratio,
                    "codes_8": None,
                    "codes_4": None,
                }
            )
            row = [name, f"{before.num_bytes / 2**20:.1f}", kernel]
            row += [f"{saved.num_bytes / 2**20:.1f}", f"{ratio:.3f}", f"{load.target:.2f}"]
            if kernel == "simulate":
                rows.append((*row, "-", "-"))
                continue
            eight = share_of_codes(saved, simulated)
            four = share_of_codes(measure(load, kernel, bits=4), simulated)
            rows.append((*row, f"{eight:.3f}", f"{four:.3f}"))
            plain[-1].update(codes_8=eight, codes_4=four)
        if options.layers:
            print(f"{name}, float32:\n{before}\n{name}, native:\n{native}\n")
    header = (
        "model",
        "float32 MiB",
        "kernel",
        "MiB",
        "ratio",
        "target",
        "codes 8 bit",
        "codes 4 bit",
    )
    print(text_table(header, rows, right=(1, 3, 4, 5, 6, 7)))
    if options.json is not None:
        made = measurement_info(time.monotonic() - began, threads=torch.get_num_threads())
        only = {"only": options.only} if options.only else {}
        found = {"benchmark": "saved_memory", **made, **only, "sizes": sizes, "rows": plain}
        write_json(options.json, found)


if __name__ == "__main__":
    main()
