"""Who may import whom: the table of the design, read from the source with `ast`.

A new folder or file of either package needs a row here before anything passes.
"""

import ast
import sys
from pathlib import Path

import bitcycle
import bitcycle_lab

ROOTS = {name: Path(package.__file__).parent for name, package in
         (("bitcycle", bitcycle), ("bitcycle_lab", bitcycle_lab))}  # fmt: skip
TESTS = Path(__file__).parent

HELPERS = {
    "bits", "precision", "registry", "matmul", "extras", "warnings", "version", "tables", "files",
    "lazy", "formats.catalogue",
}  # fmt: skip
MODEL = {
    "patterns", "model_precision", "convert", "role_schedules", "scheduler", "audit", "collect",
    "calibrate", "nonfinite", "cost", "range_test", "range_criteria", "sensitivity", "snapshot",
    "memory", "parallel", "functional_calls",
}  # fmt: skip
LAYERS = {"native", "gpu", "ops", "formats", "schedules", "quantizers", "kernels", "nn"}
LIBRARY = HELPERS | LAYERS | MODEL | {"export", "integrations"}

# folder or file of the library -> what of the library it may import, beside itself and the helpers
IN_LIBRARY: dict[str, set[str]] = {
    **{name: set() for name in HELPERS},
    "formats": {"ops", "native", "gpu.driver"},
    "native": set(),
    "gpu": {"native.encode", "native.formats", "native.products"},
    "ops": {"native", "gpu.driver", "gpu.grids", "gpu.blocks"},
    "schedules": set(),
    "quantizers": {"ops", "formats", "native.encode"},
    "kernels": {"quantizers.base", "formats.scaled", "ops", "native", "gpu"},
    "nn": {
        "ops",
        "formats",
        "quantizers",
        "kernels",
        "native.encode",
        "native.layer",
        "native.operators",
        "gpu.driver",
    },
    **{name: LAYERS | MODEL for name in MODEL},
    "export": LAYERS | MODEL,
    "integrations": LAYERS | MODEL,
    "__init__": LAYERS | MODEL,
    "__main__": set(),
}

# folder or file of the laboratory -> what of the laboratory it may import, beside itself
IN_LABORATORY: dict[str, set[str]] = {
    "listing": set(),
    "plugins": set(),
    "published": set(),
    "models": set(),
    "data": set(),
    "tasks": {"listing", "models", "data"},
    "train": {"plugins", "models", "data", "tasks"},
    "recipes": {"published", "tasks", "train"},
    "cost": {"published", "models", "data", "tasks", "train", "recipes"},
    "study": {
        "plugins", "published", "data", "tasks", "train", "recipes", "cost", "bench",
    },
    "landscape": {"data", "tasks", "train"},
    "export": {"tasks", "train"},
    "bench": {"models"},
    "doctor": {"bench"},
    "report": {"published", "train", "cost", "study", "landscape"},
    "cli": {
        "listing", "plugins", "published", "models", "data", "tasks", "train", "recipes", "cost",
        "study", "landscape", "export", "bench", "doctor", "report",
    },
    "__init__": {"train", "recipes"},
}  # fmt: skip
OF_LIBRARY: dict[str, set[str]] = {  # what of the library: everything, where nothing is said
    "listing": set(),
    "plugins": set(),
    "published": set(),
    "models": {"matmul", "registry", "extras"},
    "data": HELPERS,
    "tasks": HELPERS,
}
TABLES = {"bitcycle": IN_LIBRARY, "bitcycle_lab": IN_LABORATORY}

# packages outside the core installation, and where each may be used
OTHERS: dict[str, set[str]] = {
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "sklearn": {"data"},
    "scipy": {"study"},
    "PIL": {"data"},
    "torch_geometric": {"models", "nn", "bench"},
    "accelerate": {"train"},
    "safetensors": {"train", "export"},
    "tensorboard": {"train"},
    "jsonargparse": {"train", "cli"},
    "yaml": {"train", "recipes", "study", "cli"},
    "rich": {"train", "tables", "study", "cli"},
    "shtab": {"cli"},
    "onnx": {"export"},
    "onnxscript": {"export"},
    "onnxruntime": {"export"},
    "ray": {"study"},
    "torchao": {"bench"},
    "brevitas": {"bench"},
    "qtorch": {"bench"},
    "triton": {"gpu"},
    "lightning": {"integrations"},
    "transformers": {"integrations", "nn", "models"},
    "tokenizers": {"data"},
}


def package_and_part(path: Path) -> tuple[str, str]:
    """The package of a source file, and its folder or own name in it."""
    [package] = [name for name, root in ROOTS.items() if path.is_relative_to(root)]
    first = path.relative_to(ROOTS[package]).parts[0]
    return package, first.removesuffix(".pyi").removesuffix(".py")


def sources(package: str) -> list[Path]:
    """Every file of a package; stubs have the lazy imports."""
    root = ROOTS[package]
    return sorted([*root.rglob("*.py"), *root.rglob("*.pyi")])


def imports_of_file(path: Path) -> set[str]:
    """Full names of everything that a source file imports."""
    [root] = [root for root in ROOTS.values() if path.is_relative_to(root)]
    package = ".".join([root.name, *path.relative_to(root).parts[:-1]])
    return imports_of(ast.parse(path.read_text(encoding="utf-8")), package)


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


def may_import(package: str, part: str, name: str) -> bool:
    """Whether a file of this part of the package may import what has this full name."""
    top, *below = name.split(".")
    if top in sys.stdlib_module_names or top in ("torch", "numpy"):
        return True
    if top not in ROOTS:
        return part in OTHERS.get(top, set())
    if package == "bitcycle" and top == "bitcycle_lab":
        return (part, name) == ("__main__", "bitcycle_lab.cli.main.main")  # for torchrun
    is_whole = not below or not _is_part(top, below[0])  # `import bitcycle as bc`, or a name of it
    if is_whole:
        return package == "bitcycle_lab" and part not in OF_LIBRARY
    if package == top == "bitcycle":
        allowed = IN_LIBRARY[part] | HELPERS | {part}
    elif top == "bitcycle":
        allowed = OF_LIBRARY.get(part, LIBRARY)
    else:
        allowed = IN_LABORATORY[part] | {part}
    return below[0] in allowed or ".".join(below[:2]) in allowed


def _is_part(package: str, name: str) -> bool:
    root = ROOTS[package]
    return (root / name).is_dir() or (root / f"{name}.py").exists()


def test_every_file_imports_only_what_its_layer_may():
    forbidden = []
    for path in [*sources("bitcycle"), *sources("bitcycle_lab")]:
        package, part = package_and_part(path)
        assert part in TABLES[package], f"{package}/{part} has no row in the tables of this file"
        names = sorted(imports_of_file(path))
        forbidden += [
            f"{path.relative_to(ROOTS[package].parent)}: {name}"
            for name in names
            if not may_import(package, part, name)
        ]
    assert forbidden == []


def test_the_tests_of_the_library_import_of_the_laboratory_only_networks():
    """`bitcycle_lab.models` has networks to convert and to count."""
    wrong = []
    for path in sorted((TESTS / "bitcycle").rglob("*.py")):
        package = ".".join(["tests", *path.relative_to(TESTS).parts[:-1]])
        names = imports_of(ast.parse(path.read_text(encoding="utf-8")), package)
        wrong += [
            f"{path.relative_to(TESTS)}: {name}" for name in names if not is_for_library(name)
        ]
    assert wrong == [], chr(10).join(wrong)


def is_for_library(name: str) -> bool:
    """Whether tests of the library may import what has this full name."""
    if name.startswith("bitcycle_lab."):
        return name.split(".")[1] == "models"
    return name != "bitcycle_lab" and not name.startswith("tests.bitcycle_lab")


def test_the_rules_mean_what_the_design_says():
    expected = {
        ("bitcycle", "schedules", "bitcycle.precision.Precision"): True,
        ("bitcycle", "schedules", "bitcycle.ops.noise"): False,
        ("bitcycle", "kernels", "bitcycle.quantizers.base.Quantized"): True,
        ("bitcycle", "kernels", "bitcycle.quantizers.sbm.SBM"): False,
        ("bitcycle", "nn", "bitcycle.native.layer.LayerProduct"): True,
        ("bitcycle", "nn", "bitcycle.native.products.gemm"): False,
        ("bitcycle", "convert", "bitcycle_lab.train"): False,
        ("bitcycle", "__main__", "bitcycle_lab.cli.main.main"): True,
        ("bitcycle", "convert", "bitcycle"): False,
        ("bitcycle", "nn", "matplotlib.pyplot"): False,
        ("bitcycle", "convert", "numpy"): True,
        ("bitcycle_lab", "models", "bitcycle.convert.quantize_model"): False,
        ("bitcycle_lab", "train", "bitcycle.convert.quantize_model"): True,
        ("bitcycle_lab", "train", "bitcycle_lab.recipes"): False,
        ("bitcycle_lab", "study", "bitcycle_lab.recipes"): True,
        ("bitcycle_lab", "report", "matplotlib.pyplot"): True,
        ("bitcycle_lab", "data", "pandas"): False,
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
