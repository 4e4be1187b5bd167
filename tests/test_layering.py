"""Who may import whom: the table of the design, read from the source with `ast`.

A new folder or file below src/bitcycle needs a row here before anything passes.
"""

import ast
import sys
from pathlib import Path

import bitcycle

ROOT = Path(bitcycle.__file__).parent

FOUNDATION = {
    "bits", "precision", "registry", "matmul", "extras", "warnings", "version", "tables", "files",
    "lazy", "published", "formats.catalogue",
}  # fmt: skip
CORE = {
    "patterns", "model_precision", "convert", "scheduler", "audit", "collect", "calibrate",
    "nonfinite", "cost", "range_test", "range_criteria", "snapshot", "memory", "parallel",
}  # fmt: skip
BELOW_CORE = {"native", "ops", "formats", "schedules", "quantizers", "kernels", "nn"}
UP_TO_TRAIN = BELOW_CORE | CORE | {"models", "data", "tasks", "train"}
UP_TO_ANALYSIS = UP_TO_TRAIN | {"recipes", "analysis"}

# folder or file -> what of ours it may import, beside itself and the foundation
OURS: dict[str, set[str]] = {
    **{name: set() for name in FOUNDATION},
    "formats": {"ops", "native"},
    "native": set(),
    "ops": {"native"},
    "schedules": set(),
    "quantizers": {"ops", "formats"},
    "kernels": {"quantizers.base", "ops", "native"},
    "nn": {"ops", "formats", "quantizers", "kernels", "native.layer", "native.operators"},
    **{name: BELOW_CORE | CORE for name in CORE},
    "__init__": BELOW_CORE | CORE | {"train"},
    "models": set(),
    "data": set(),
    "tasks": {"models", "data"},
    "train": UP_TO_TRAIN,
    "recipes": UP_TO_TRAIN,
    "analysis": UP_TO_ANALYSIS,
    "landscape": UP_TO_TRAIN,
    "export": UP_TO_TRAIN,
    "bench": BELOW_CORE | CORE | {"models"},
    "study": UP_TO_ANALYSIS,
    "report": {
        "formats",
        "kernels.base",
        "schedules",
        "cost",
        "range_criteria",
        "range_test",
        "landscape",
        "analysis",
        "study",
        "train",
    },
    "integrations": BELOW_CORE | CORE,
    "__main__": {"cli"},
    "cli": UP_TO_ANALYSIS | {"study", "landscape", "export", "bench", "report", "integrations"},
}

# packages outside the core installation, and where each may be used
OTHERS: dict[str, set[str]] = {
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "sklearn": {"data"},
    "scipy": {"analysis"},
    "PIL": {"data"},
    "torch_geometric": {"models", "nn"},
    "accelerate": {"train"},
    "safetensors": {"train", "export"},
    "tensorboard": {"train"},
    "jsonargparse": {"train", "cli"},
    "yaml": {"train", "study", "cli"},
    "rich": {"train", "tables", "study", "cli"},
    "shtab": {"cli"},
    "onnx": {"export"},
    "onnxscript": {"export"},
    "onnxruntime": {"export"},
    "ray": {"study"},
    "torchao": {"bench"},
    "brevitas": {"bench"},
    "qtorch": {"bench"},
    "lightning": {"integrations"},
    "transformers": {"integrations", "nn", "models"},
    "tokenizers": {"data"},
}


def part_of(path: Path) -> str:
    """The folder below src/bitcycle, or the file's own name."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".pyi").removesuffix(".py")


def imports_of(tree: ast.AST, package: str) -> set[str]:
    """Full names of everything imported, at any depth of the file, also by `extras.require`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            outer = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join([*outer, node.module or ""]).strip(".") if node.level else node.module
            assert start is not None
            found |= {f"{start}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and _called(node) in ("require", "import_module"):
            literals = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            found |= {name for name in literals if isinstance(name, str)}
    return found


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def may_import(part: str, name: str) -> bool:
    """Whether a file of this part may import what has this full name."""
    top, *below = name.split(".")
    if top == "bitcycle":
        if not below:
            return part == "cli"  # nobody imports the whole from inside
        is_name_of_package = not _is_ours(below[0])  # `from bitcycle import quantize_model`
        if is_name_of_package:
            return part in ("cli", "report", "integrations", "recipes", "study", "landscape")
        allowed = OURS[part] | FOUNDATION | {part}
        return below[0] in allowed or ".".join(below[:2]) in allowed
    if top in sys.stdlib_module_names or top in ("torch", "numpy"):
        return True
    return part in OTHERS.get(top, set())


def _is_ours(name: str) -> bool:
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()


def test_every_file_imports_only_what_its_layer_may():
    forbidden = []
    for path in sorted([*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi")]):  # stubs: lazy imports
        part, inside = part_of(path), path.relative_to(ROOT)
        assert part in OURS, f"{part} has no row in the table of this file: add one"
        package = ".".join(["bitcycle", *inside.parts[:-1]])
        names = imports_of(ast.parse(path.read_text(encoding="utf-8")), package)
        forbidden += [f"{inside}: {name}" for name in sorted(names) if not may_import(part, name)]
    assert forbidden == []


def test_the_rules_mean_what_the_design_says():
    expected = {
        ("schedules", "bitcycle.precision.Precision"): True,
        ("schedules", "bitcycle.ops.noise"): False,
        ("kernels", "bitcycle.quantizers.base.Quantized"): True,
        ("kernels", "bitcycle.quantizers.sbm.SBM"): False,
        ("nn", "bitcycle.native.layer.LayerProduct"): True,
        ("nn", "bitcycle.native.products.gemm"): False,
        ("models", "bitcycle.convert.quantize_model"): False,
        ("convert", "bitcycle.train"): False,
        ("train", "bitcycle.recipes"): False,
        ("study", "bitcycle.recipes"): True,
        ("convert", "bitcycle"): False,
        ("nn", "matplotlib.pyplot"): False,
        ("report", "matplotlib.pyplot"): True,
        ("data", "pandas"): False,
        ("convert", "numpy"): True,
    }
    assert {rule: may_import(*rule) for rule in expected} == expected


def test_imports_are_seen_in_every_form():
    source = """
import a.b
from . import c
from ..d import e
def f():
    from g import h
    require("i.j", extra="x", purpose="y")
"""
    found = imports_of(ast.parse(source), "bitcycle.nn")
    assert found == {"a.b", "bitcycle.nn.c", "bitcycle.d.e", "g.h", "i.j"}
