"""Runs as Ray tasks; the real Ray is in tests/bitcycle_lab/e2e/test_study.py."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitcycle.extras import MissingExtraError
from bitcycle_lab import plugins
from bitcycle_lab.study.engines import make_engine
from bitcycle_lab.study.engines.ray import RayEngine, train_task
from tests.bitcycle_lab.study.small_studies import tiny


class Cancelled(Exception):
    pass


class RayError(Exception):
    pass


class FakeRay:
    """Ray without processes: a task is a dict that a test fills with its result."""

    exceptions = SimpleNamespace(TaskCancelledError=Cancelled, RayError=RayError)

    def __init__(self, **resources):
        self.resources = resources
        self.inits, self.options, self.cancelled, self.given = [], [], [], []
        self.is_up = False

    def is_initialized(self):
        return self.is_up

    def init(self, **options):
        self.inits.append(options)
        self.is_up = True

    def shutdown(self):
        self.is_up = False

    def cluster_resources(self):
        return self.resources

    def remote(self, **settings):
        assert settings == {"max_retries": 0, "max_calls": 1}

        def with_options(**options):
            self.options.append(options)
            return SimpleNamespace(remote=lambda *given: self.given.append(given) or Task())

        return lambda function: SimpleNamespace(options=with_options)

    def wait(self, tasks, *, num_returns, timeout):
        ready = [task for task in tasks if task.result is not None]
        return ready[:num_returns], []

    def get(self, task):
        if isinstance(task.result, Exception):
            raise task.result
        return task.result

    def cancel(self, task, *, force):
        self.cancelled.append((task, force))


class Task:
    result = None


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay(CPU=8.0)
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_without_an_address_a_ray_of_this_machine_is_started_and_ended(ray):
    with make_engine("ray", num_jobs=None, threads=3) as engine:
        assert ray.is_up
        assert engine.num_jobs == 2  # 8 processors, 3 threads a run
    assert not ray.is_up
    assert ray.inits[0]["address"] == "local"
    with make_engine("ray", num_jobs=5, threads=3, address="head:6379") as engine:
        assert engine.num_jobs == 5
    assert ray.inits[1]["address"] == "head:6379"


def test_a_ray_that_was_there_before_stays(ray):
    ray.init()
    with RayEngine():
        pass
    assert ray.is_up
    assert len(ray.inits) == 1


def test_a_run_reserves_its_threads_and_a_gpu_where_there_are_some(ray):
    with RayEngine() as engine:
        engine.start(tiny(threads=4))
    assert ray.options[0] == {"num_cpus": 4, "num_gpus": 0, "name": "small-seed0"}
    ray.resources = {"CPU": 64.0, "GPU": 2.0}
    with RayEngine() as engine:
        assert engine.num_jobs == 2
        engine.start(tiny())
    assert ray.options[1]["num_gpus"] == 1


def test_a_task_receives_what_the_studys_process_imported(ray, monkeypatch, tmp_path):
    monkeypatch.setattr(plugins, "_imported", {"/shared/own_things.py": None})
    with RayEngine() as engine:
        engine.start(tiny())
    [(_config, folder, imported)] = ray.given
    assert (folder, imported) == (str(Path.cwd()), ("/shared/own_things.py",))
    missing = str(tmp_path / "absent.py")
    monkeypatch.chdir(tmp_path)
    outcome = train_task(replace(tiny(), output="runs"), str(tmp_path), (missing,))
    assert outcome["state"] == "failed"
    assert missing in outcome["message"]


def test_more_threads_than_processors_would_never_start(ray):
    with pytest.raises(ValueError, match=r"threads \(16\).*8"):
        RayEngine(threads=16)
    assert not ray.is_up


@pytest.mark.parametrize(
    ("result", "state", "message"),
    [
        ({"name": "small-seed0", "state": "done", "message": ""}, "done", ""),
        (Cancelled(), "stopped", "stopped"),
        (RayError("worker\ndied"), "failed", "RayError: worker died (log: "),
    ],
)
def test_a_task_that_ended_has_an_outcome(ray, result, state, message):
    with RayEngine() as engine:
        assert engine.wait(0.0) == []
        engine.start(tiny())
        assert engine.running == ("small-seed0",)
        assert engine.wait(0.0) == []
        next(iter(engine._tasks)).result = result
        [outcome] = engine.wait(0.0)
        assert engine.running == ()
    assert (outcome.name, outcome.state) == ("small-seed0", state)
    assert outcome.message.startswith(message)


def test_stopping_asks_and_killing_does_not(ray):
    engine = RayEngine()
    engine.start(tiny())
    engine.stop()
    assert [force for _, force in ray.cancelled] == [False]
    engine.kill()
    assert [force for _, force in ray.cancelled] == [False, True]


def test_a_machine_without_the_folder_says_what_is_needed(tmp_path):
    outcome = train_task(tiny(), str(tmp_path / "no"))
    assert outcome["state"] == "failed"
    assert str(tmp_path / "no") in outcome["message"]


def test_a_cluster_that_is_not_there_is_one_clear_error(ray, monkeypatch):
    def fail(**options):
        raise ConnectionError("no route")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ConnectionError, match="far:6379: no route"):
        RayEngine(address="far:6379")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[cluster\]"):
        RayEngine()
