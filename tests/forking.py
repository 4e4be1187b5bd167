"""Commands and scripts in a process of their own that need not import torch again.

A server per test session imports what takes seconds to import, and forks for every job. Nothing
else ever runs in it, so that a job starts as a new interpreter does, but for the imports.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
IMPORTED = (
    "torch._dynamo", "bitcycle_lab.cli.main", "sklearn.datasets", "accelerate", "jsonargparse",
    "rich.console",
)  # fmt: skip
Done = subprocess.CompletedProcess[str]


def run_command(arguments: Sequence[str], folder: Path, **options: Any) -> Done:
    """`bitcycle` with these arguments."""
    return _run({"command": list(arguments)}, folder, **options)


def run_script(path: Path, folder: Path, **options: Any) -> Done:
    """`python path`."""
    return _run({"script": str(path)}, folder, **options)


def _run(
    job: dict[str, Any], folder: Path, *, env: Mapping[str, str] | None = None, timeout: int = 300
) -> Done:
    env = dict(os.environ if env is None else env)
    with tempfile.TemporaryDirectory() as outputs:
        paths = [os.path.join(outputs, name) for name in ("stdout", "stderr")]
        job |= {"folder": str(folder), "env": env, "timeout": timeout, "outputs": paths}
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (Path(path).read_text(encoding="utf-8") for path in paths)
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(str(job), timeout, out, err)
    return subprocess.CompletedProcess([], code, out, err)


@functools.cache
def _server() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.forking"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def serve() -> None:
    """Answer every job, one per line, with its exit code; ends with the tests."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(job: dict[str, Any]) -> None:
    """Be the process of the job; never returns."""
    for number, path in enumerate((os.devnull, *job["outputs"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(path, flags), number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))
    signal.alarm(job["timeout"])
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["folder"])
    code: object = 0
    try:
        _start(job)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _start(job: dict[str, Any]) -> None:
    if "script" in job:
        sys.argv, sys.path[0] = [job["script"]], str(Path(job["script"]).parent)
        runpy.run_path(job["script"], run_name="__main__")
        return
    from bitcycle_lab.cli.main import main

    sys.argv = ["bitcycle", *job["command"]]
    sys.exit(main(job["command"]))


if __name__ == "__main__":
    serve()
