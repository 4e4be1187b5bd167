"""The result of a run, as result.json holds it: metrics, cost, kernels and a digest of the weights.

`final_evaluation` makes it; tables and the state of a study read it, without importing torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bitcycle_lab.train.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The contents of result.json.

    final: metrics on the test split with the last weights. best: with the weights that had the best
    validation metric; None without a validation split. swa: with the averaged weights.
    eval_precision: the bits of all these evaluations. kernels: by converted layer, as the run chose
    them. instruction_set: of the native library, such as avx2; None without it. has_gpu_kernels:
    whether Triton kernels rounded on a GPU, and failed_gpu_kernels those that could not run there.
    range_test: the test that replaced `auto` in the forward schedule; None without `auto`.
    """

    name: str
    seed: int
    metric: str
    final: dict[str, float]
    best: dict[str, float] | None
    swa: dict[str, float] | None
    eval_precision: str
    cost: dict[str, Any]
    steps: int
    seconds: float
    kernels: dict[str, str]
    instruction_set: str | None = None
    has_gpu_kernels: bool = False
    failed_gpu_kernels: list[str] = field(default_factory=list)
    weights_sha256: str
    directory: str
    range_test: dict[str, Any] | None = None

    @property
    def value(self) -> float:
        """The final value of the task's metric."""
        return self.final[self.metric]

    @classmethod
    def read(cls, directory: str | Path) -> RunResult:
        """The result of a finished run."""
        path = RunDirectory(directory).result_file
        if not path.exists():
            raise ValueError(f"{directory} has no result.json: the run is not finished")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            result = cls(**{**stored, "directory": str(directory)})
            for metrics in (result.final, *filter(None, (result.best, result.swa))):
                float(metrics[result.metric])
            return result
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"{path} is damaged ({error}); delete it and resume the run to write it again"
            ) from None


def result_json(result: RunResult) -> dict[str, Any]:
    """The result as JSON data, without the folder: a run may be moved."""
    plain = asdict(result)
    del plain["directory"]
    return plain
