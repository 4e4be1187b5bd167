"""A function of the tests in several processes that talk over gloo, forked from `tests.forking`."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forking import run_script

TIMEOUT = 200  # seconds: a hang is a failure


def run_together(
    function: Callable[..., Any],
    num_processes: int,
    folder: Path,
    /,
    *,
    has_group: bool = True,
    **arguments: Any,
) -> list[Any]:
    """What the function returns in every process, by rank, as JSON brings it back (floats exact).

    has_group: start the process group before the call; otherwise the function finds the variables
    that torchrun sets, one process alone none.
    """
    place = Path(tempfile.mkdtemp(dir=folder))
    job = {
        "function": [function.__module__, function.__qualname__],
        "num_processes": num_processes,
        "has_group": has_group,
        "arguments": arguments,
    }
    (place / "job.json").write_text(json.dumps(job, default=str))
    done = run_script(Path(__file__), place, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(num_processes)]


def _main() -> int:
    job = json.loads(Path("job.json").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    importlib.import_module(job["function"][0])  # once for all
    children = [_fork(rank, port, job) for rank in range(job["num_processes"])]
    code = 0
    while children:
        pid, status = os.wait()
        children.remove(pid)
        if os.waitstatus_to_exitcode(status):
            code = 1
            for other in children:  # they would wait for the one that is gone
                os.kill(other, signal.SIGKILL)
    return code


def _fork(rank: int, port: int, job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(TIMEOUT - 10)  # the parent's alarm is not inherited
        _work(rank, port, job)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _work(rank: int, port: int, job: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    size = job["num_processes"]
    if size > 1 or job["has_group"]:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
    torch.set_num_threads(1)
    if job["has_group"]:
        dist.init_process_group("gloo")
    module, name = job["function"]
    result = getattr(importlib.import_module(module), name)(**job["arguments"])
    Path(f"{rank}.json").write_text(json.dumps(result))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(_main())
