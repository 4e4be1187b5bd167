"""The papers' notation of a method, such as "CPT 3-8/8", as settings of a run.

A text has a quantizer unless it is SBM, a method, and the bits forward/backward:

    static 8/8                 8 bits in every step
    CPT 3-8/8                  cosine cycles from 3 to 8, errors at 8
    DoReFa CPT 3-6/6           the same by another quantizer
    progressive 3-8/8          one ramp over the first half
    triangle, anneal, LR, ...  another schedule of cycles
    gradients cycled 6/6-8     forward static, errors cycled
    CPT 8-32/32                32 is float32
    float32                    nothing is quantized
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bitcycle.registry import unknown_name
from bitcycle_lab.recipes.base import DEFAULTS, Settings, change

FLOAT32 = "float32"
STATIC = "static"
CYCLED_ERRORS = "gradients cycled"
QUANTIZERS = {
    "AbsMax": "absmax",
    "DoReFa": "dorefa",
    "power of two": "pow2",
    "SBM full": "sbm_full",
    "WAGEUBN": "wageubn",
}
CYCLES = ("LR", "LT", "CR", "CT", "RR", "RT-V", "RT-H", "ER", "ET-V", "ET-H", "triangle", "anneal")
METHODS = (STATIC, "CPT", "progressive", CYCLED_ERRORS, *CYCLES)
KEEPS_ENDS = ("dorefa", "wageubn")  # their authors keep the first and the last layer float32
_TEXT = re.compile(
    rf"(?:(?P<quantizer>{'|'.join(QUANTIZERS)})(?= |$))? ?(?P<method>.*?) ?"
    r"(?P<forward>\d+(?:-\d+)?)/(?P<backward>\d+(?:-\d+)?)"
)


@dataclass(frozen=True)
class Notation:
    """A method and its bits, read from a text."""

    method: str
    forward: str  # "3-8" or "8"
    backward: str
    quantizer: str = "sbm"

    @classmethod
    def parse(cls, text: str) -> Notation:
        """Read a text.

        >>> Notation.parse("CPT 3-8/8")
        Notation(method='CPT', forward='3-8', backward='8', quantizer='sbm')
        >>> Notation.parse("DoReFa 6/6").method
        'static'
        """
        if text == FLOAT32:
            return cls(FLOAT32, "32", "32")
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no method with bits, such as 'CPT 3-8/8'")
        quantizer = QUANTIZERS.get(found["quantizer"] or "", "sbm")
        method = found["method"] or (STATIC if quantizer != "sbm" else "")
        if not method:
            raise ValueError(f"{text!r} has no method; static bits are 'static {text}'")
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        notation = cls(method, found["forward"], found["backward"], quantizer)
        cycled = "backward" if method == CYCLED_ERRORS else None if method == STATIC else "forward"
        for side in ("forward", "backward"):
            if ("-" in getattr(notation, side)) != (side == cycled):
                needs = "a range" if side == cycled else "one number"
                raise ValueError(f"{text!r}: the {side} bits of {method!r} must be {needs}")
        return notation

    @property
    def name(self) -> str:
        """As it stands in the name of a recipe.

        >>> [Notation.parse(text).name for text in ("CPT 3-8/8", "SBM full 8/8", "CPT 8-32/32")]
        ['cpt-3-8-8', 'sbm-full-8-8', 'cpt-8-32']
        """
        if self.method == FLOAT32:
            return FLOAT32
        words = [] if self.quantizer == "sbm" else [self.quantizer.replace("_", "-")]
        if self.method == CYCLED_ERRORS:
            words.append("gradcycle")
        elif not (words and self.method == STATIC):
            words.append(self.method.lower())
        return "-".join([*words, self.forward, *([] if self.backward == "32" else [self.backward])])

    @property
    def is_cycled(self) -> bool:
        """Whether its bits depend on a number of cycles."""
        return self.method in ("CPT", CYCLED_ERRORS, *CYCLES)

    def change(self, settings: Mapping[str, Any], *, cycles: int | None) -> Settings:
        """The settings of a float32 run with this method. cycles: needed if it is cycled.

        >>> changed = Notation.parse("CPT 3-8/8").change({"steps": 9}, cycles=32)
        >>> changed["precision"]
        {'forward': 'CR:3-8:32', 'backward': 8}
        """
        if self.method == FLOAT32:
            return change(settings, {"precision": DEFAULTS})
        given = settings.get("precision", {})
        own: Settings = {
            "forward": self._schedule(self.forward, cycles),
            "backward": self._schedule(self.backward, cycles),
        }
        if self.quantizer != "sbm":
            own["quantizer"] = self.quantizer
        skip = given.get("skip", [])
        if self.quantizer in KEEPS_ENDS and "fc" in skip and "conv1" not in skip:
            own["skip"] = ["conv1", *skip]  # both ends of a residual net, as the quantizer has it
        if self.quantizer == "wageubn":  # its gradients get coarser over the run
            if "steps" not in settings:
                raise ValueError("WAGEUBN needs the length of the run: give steps, not epochs")
            own["quantizer_options"] = {"total_steps": settings["steps"]}
        return change(settings, {"precision": own})

    def _schedule(self, bits: str, cycles: int | None) -> int | str:
        if "-" not in bits:
            return "fp32" if bits == "32" else int(bits)
        if self.method == "progressive":
            return f"ramp:{bits}@0.5"
        name = self.method if self.method in CYCLES else "CR"
        return f"{name}:{bits}:{cycles}"
