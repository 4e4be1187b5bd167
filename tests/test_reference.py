"""examples/cpt_in_one_file.py, CPT in plain PyTorch, against the library."""

from __future__ import annotations

import re
import runpy
import zlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bitcycle as bc
from bitcycle.ops.layout import element_numbers
from bitcycle.ops.noise import hash_ints, noise_key, uniform
from tests.test_readme import ROOT, executed

STEPS = 50
EXAMPLE = ROOT / "examples" / "cpt_in_one_file.py"


@pytest.fixture(scope="module")
def reference() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLE)))


class LibraryNoise:
    """The noise that the library adds to the errors, in the order of a backward pass."""

    layers = ("hidden", "conv2", "conv1")

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, error: Tensor) -> Tensor:
        step, layer = divmod(self.num_calls, len(self.layers))
        self.num_calls += 1
        base = hash_ints(0, 0, zlib.crc32(self.layers[layer].encode()))  # seed, rank, name
        clock = torch.tensor([base, step, 1], dtype=torch.int32)
        return uniform(element_numbers(error), noise_key(clock)).to(error.dtype)


def test_the_library_trains_as_the_reference_does(reference: SimpleNamespace) -> None:
    torch.manual_seed(0)

    class PlainNet(reference.ConvNet):  # as a user of the library writes it
        def forward(self, x: Tensor) -> Tensor:
            x = self.conv2(self.conv1(x).relu()).relu()
            return self.last(self.hidden(x.flatten(1)).relu())

    model, own = reference.ConvNet().double(), PlainNet().double()
    own.load_state_dict(model.state_dict())
    images, targets, *_ = reference.load_images(num_test=360, dtype=torch.float64)

    torch.manual_seed(1)
    expected = reference.train(model, images, targets, LibraryNoise(), steps=STEPS)

    bc.quantize_model(own, skip=["last"], kernel="simulate")
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    bits = bc.PrecisionScheduler(own, forward="CR:4-8:8", backward=8, total_steps=STEPS)
    torch.manual_seed(1)
    losses = []
    for _ in range(STEPS):
        batch = torch.randint(len(images), (64,))
        loss = F.cross_entropy(own(images[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
        losses.append(loss.item())

    assert losses == pytest.approx(expected, rel=0, abs=1e-9)
    assert losses[-1] < losses[0] / 2  # it learns


def test_the_reference_schedule_is_cr(reference: SimpleNamespace) -> None:
    own = [reference.cycle(step, 500, 3, 8, 8) for step in range(500)]
    assert own == bc.parse_schedule("CR:3-8:8").values(500)


def test_the_page_that_explains_the_reference_shows_its_code() -> None:
    example = EXAMPLE.read_text(encoding="utf-8")
    code = "\n".join(
        line
        for block in executed(ROOT / "docs" / "how-it-works.md", "python")
        for line in block.lines
    )
    definitions = re.findall(r"^(?:def|class) .*(?:\n(?: .*)?|\n\))*", code, re.M)
    assert len(definitions) == 8
    for definition in definitions:
        assert definition.strip() in example
