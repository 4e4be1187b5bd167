"""CPT on CIFAR-100: Figures 1, 2, 5, 6, 7, 8, and the float32 baselines that no table has."""

from __future__ import annotations

from collections.abc import Iterator

from bitcycle.recipes.base import FAMILIES, Recipe
from bitcycle.recipes.cifar import METHODS, cifar, train_cifar
from bitcycle.recipes.tables import read_table, values
from bitcycle.train.config import PrecisionConfig, RunConfig

RESNETS = ("resnet38", "resnet74", "resnet110", "resnet152", "resnet164")
ABLATED = ("resnet38", "resnet74")  # the networks of the paper's other ablations


def _ours(figure: str, *, is_cell_of_a_table: bool) -> tuple[str, ...]:
    return () if is_cell_of_a_table else (f"the grid of {figure} is unpublished, this one is ours",)


@FAMILIES.register("cpt-figure1")
def figure1() -> Iterator[Recipe]:
    """Static, progressive and cyclic precision on ResNet-74."""
    for method, cell in (("static", "8/8"), ("progressive", "3-8/8"), ("cpt", "3-8/8")):
        yield Recipe(config=cifar("cifar100", "resnet74", method, cell), cells=("CPT Fig. 1",))


@FAMILIES.register("cpt-figure2")
def figure2() -> Iterator[Recipe]:
    """Schedules whose loss landscapes are drawn: those of Fig. 1 on the network of Fig. 6."""
    notes = ("which runs CPT Fig. 2 draws is unpublished, these are ours",)
    for method, cell in (("static", "8/8"), ("progressive", "3-8/8"), ("cpt", "3-8/8")):
        config = cifar("cifar100", "resnet110", method, cell)
        yield Recipe(config=config, cells=("CPT Fig. 2",), notes=notes)


@FAMILIES.register("cpt-figure5")
def figure5() -> Iterator[Recipe]:
    """Accuracy against cost, static and cyclic, for six networks."""
    where = "CPT Fig. 5"
    costs = {
        (row["model"], METHODS[row["method"]], row["precision_fw_bw"]): row
        for row in read_table("figure5_cost")
    }
    deep = [("static", cell) for cell in ("8/8", "6/6", "4/6")]
    deep += [("cpt", cell) for cell in ("3-8/8", "3-6/6", "3-4/6")]
    mobile = [("static", "8/8"), ("static", "6/6"), ("cpt", "4-8/8"), ("cpt", "4-6/6")]
    for model in (*RESNETS, "mobilenetv2"):
        for method, cell in deep if model in RESNETS else mobile:
            row = costs.get((model, method, cell))
            notes = ("its cost is read off CPT Fig. 5",) if row else ()
            if (model, method) == ("mobilenetv2", "cpt"):
                notes = ("CPT Fig. 5 marks its lower bound 3 where the tables say 4",)
            yield Recipe(
                config=cifar("cifar100", model, method, cell),
                cells=(where,),
                published=values(row, where, "gbitops") if row else (),
                notes=notes,
            )


@FAMILIES.register("cpt-figure6")
def figure6() -> Iterator[Recipe]:
    """The runs whose loss landscapes are drawn."""
    for method, cell in (("static", "8/8"), ("cpt", "3-8/8"), ("cpt", "4-8/8")):
        yield Recipe(config=cifar("cifar100", "resnet110", method, cell), cells=("CPT Fig. 6",))


@FAMILIES.register("cpt-figure7")
def figure7() -> Iterator[Recipe]:
    """Upper bounds of the cycle."""
    for model in ABLATED:
        for high in (4, 5, 6, 7, 8, 12, 16):
            config = cifar("cifar100", model, "cpt", f"3-{high}/8")
            notes = _ours("CPT Fig. 7", is_cell_of_a_table=high == 8)
            yield Recipe(config=config, cells=("CPT Fig. 7",), notes=notes)


@FAMILIES.register("cpt-figure8")
def figure8() -> Iterator[Recipe]:
    """Numbers of cycles."""
    for model in ABLATED:
        for cycles in (2, 4, 8, 16, 32, 64):
            config = cifar("cifar100", model, "cpt", "3-8/8", cycles=cycles)
            notes = _ours("CPT Fig. 8", is_cell_of_a_table=cycles == 32)
            yield Recipe(config=config, cells=("CPT Fig. 8",), notes=notes)


@FAMILIES.register("cifar-float32")
def float32() -> Iterator[Recipe]:
    """The networks unquantized."""
    for dataset in ("cifar10", "cifar100"):
        for model in (*RESNETS, "mobilenetv2"):
            yield Recipe(config=float_run(dataset, model))


def float_run(dataset: str, model: str) -> RunConfig:
    """The same training in float32: float_run("cifar100", "resnet74")."""
    return train_cifar(f"{dataset}-{model}-float32", dataset, model, PrecisionConfig())
