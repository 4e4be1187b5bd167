"""Formats on WikiText-2: what do healing and cycling bring?"""

from __future__ import annotations

from dataclasses import replace

from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.language import with_mx
from bitcycle_lab.study.catalogue.methods import method, small_study
from bitcycle_lab.study.study import STUDIES, Study

STEPS = 240  # a multiple of the 8 cycles; a run takes about a minute on one core
BASE = "wikitext2-transformer"
NOTES = (
    "WikiText-2 with the 5,000 most frequent words, 13 % of the text is <unk>: perplexities are "
    "lower than those of all 33,278; an eighth of an epoch",
    "every run is evaluated at the last precision of its schedule, except that 'NVFP4, evaluated "
    "at bf16' has the training of NVFP4: it separates what healing trains from what the evaluation "
    "gains",
    "NVFP4 leaves the head, 2 of 12 linear layers and the products of attention in bf16, as "
    "published; healing switches the other layers to bf16 for the last 18 % of the run",
    "MX rounds every linear layer and both products of attention; forward / backward, 8 cycles; "
    "scales are rounded up, as MXFP8 is trained, except where the name says down, the OCP rule",
    "simulated formats: the cost counts the bits of elements, not time",
)


@STUDIES.register("formats-small")
def formats_small() -> Study:
    """Static, healed and cycled formats against bf16."""
    nvfp4 = recipe(f"{BASE}-nvfp4")
    at_bf16 = replace(nvfp4, name=f"{BASE}-nvfp4-at-bf16",
                      eval=replace(nvfp4.eval, precision="w=bf16,a=bf16"))  # fmt: skip
    methods = (
        method(recipe(f"{BASE}-float32-small"), "float32"),
        method(recipe(f"{BASE}-bf16"), "bf16"),
        method(nvfp4, "NVFP4"),
        method(at_bf16, "NVFP4, evaluated at bf16"),
        method(recipe(f"{BASE}-nvfp4-heal"), "NVFP4, forward healed"),
        method(recipe(f"{BASE}-nvfp4-heal-both"), "NVFP4, both healed"),
        method(with_mx("mxfp4", "mxfp4"), "MXFP4 / MXFP8"),
        method(recipe(f"{BASE}-mxfp8"), "MXFP8"),
        method(with_mx("mxfp8-floor", "mxfp8", scale="floor"), "MXFP8, scales rounded down"),
        method(recipe(f"{BASE}-mx-cpt"), "CPT MXFP4-MXFP8-bf16 / MXFP8"),
    )
    return small_study(
        "formats-small",
        "NVFP4 and MX on WikiText-2: what do healing and cycling over formats bring?",
        [replace(each, config=replace(each.config, steps=STEPS)) for each in methods],
        baseline="bf16",
        notes=NOTES,
    )
