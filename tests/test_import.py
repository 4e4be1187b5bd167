"""`import bitcycle` needs the core installation alone."""

import json
import subprocess
import sys

from tests.test_layering import OTHERS

EXTRAS = sorted({*OTHERS, "torchvision", "scipy", "pandas", "docstring_parser"})


def run(code):
    """What a fresh interpreter prints as JSON."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_import_loads_no_extra():
    code = "import json, sys, bitcycle; print(json.dumps(sorted(sys.modules)))"
    loaded = {name.split(".")[0] for name in run(code)}
    assert "bitcycle" in loaded
    assert loaded & set(EXTRAS) == set()


def test_the_core_works_without_any_extra():
    code = f"""
import json, sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # None: as if not installed
import torch, bitcycle as bc
from bitcycle.nn import LAYERS
from bitcycle.quantizers import QUANTIZERS
model = bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(4, 2)))
bits = bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=6)
model(torch.ones(2, 4)).sum().backward()
bits.step()
names = [len(LAYERS.names()), len(QUANTIZERS.names()), len(bc.list_schedules())]
print(json.dumps(names))
"""
    assert all(count > 0 for count in run(code))


def test_layers_of_other_packages_are_listed_without_importing_them():
    code = """
import contextlib, io, json, sys
import torch, bitcycle as bc
from bitcycle.cli.main import main
bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(4, 2)))
with contextlib.redirect_stdout(io.StringIO()) as shown:
    main(["ls", "layers"])
found = {name.split(".")[0] for name in sys.modules} & {"transformers", "torch_geometric"}
print(json.dumps([sorted(found), shown.getvalue()]))
"""
    imported, shown = run(code)
    assert imported == []
    assert "transformers.pytorch_utils.Conv1D" in shown
    assert "Imported when a model of transformers is converted" in shown


def test_every_public_name_is_there():
    import bitcycle

    missing = [name for name in bitcycle.__all__ if not hasattr(bitcycle, name)]
    assert missing == []
