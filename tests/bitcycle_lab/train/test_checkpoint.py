"""Checkpoints are complete or skipped; their state comes back as it was saved."""

import ast
import errno
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bitcycle_lab.train
from bitcycle.files import FORM
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.train.checkpoint import (
    CheckpointError,
    Checkpoints,
    checkpoint_name,
    find_damage,
    join_state,
    read_state,
    split_state,
    write_state,
)
from tests.bitcycle_lab.data.layouts import Payload
from tests.bitcycle_lab.train.small import files_below
from tests.test_layering import imports_of

FILES = ["model.json", "model.safetensors", "run.json", "manifest.json"]


def state(step):
    return {"model": {"w": torch.full((4,), float(step))}, "run": {"step": step}}


def saved(folder, *steps, keep=3):
    checkpoints = Checkpoints(folder, keep=keep)
    for step in steps:
        checkpoints.save(step, state(step))
    return checkpoints


def is_of(loaded, step):
    found, parts = loaded
    return found == step == parts["run"]["step"] and bool((parts["model"]["w"] == step).all())


def break_file(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-3])
    elif how == "bit-flipped":
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        path.write_bytes(content[:middle] + flipped + content[middle + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        assert how == "missing"
        path.unlink()


def test_without_a_checkpoint_there_is_nothing_to_load(tmp_path):
    assert Checkpoints(tmp_path / "none").load_newest() is None
    assert Checkpoints(tmp_path / "none").load_best() is None
    assert Checkpoints(tmp_path / "none").steps() == []


@pytest.mark.parametrize(("keep", "kept"), [(1, [9]), (3, [3, 6, 9])])
def test_as_many_are_kept_as_asked(tmp_path, keep, kept):
    assert saved(tmp_path, 1, 2, 3, 6, 9, keep=keep).steps() == kept


def test_the_checkpoint_of_a_step_is_loaded_or_the_error_lists_those_there_are(tmp_path):
    checkpoints = saved(tmp_path, 3, 6, 9, keep=2)
    assert is_of((6, checkpoints.load(6)), 6)
    with pytest.raises(CheckpointError, match=r"step 3 .*\[6, 9\]"):
        checkpoints.load(3)
    break_file(tmp_path / "step-00000006" / "model.safetensors", "truncated")
    with pytest.raises(CheckpointError, match=r"step 6 .*model\.safetensors"):
        checkpoints.load(6)


def test_the_best_is_not_counted_among_the_last(tmp_path):
    checkpoints = saved(tmp_path, 1, keep=1)
    checkpoints.save_best(1, state(1))
    checkpoints.save(2, state(2))
    checkpoints.save_best(2, state(2))
    checkpoints.save(3, state(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "step-00000003"]
    assert is_of(checkpoints.load_best(), 2)


@pytest.mark.parametrize(
    ("file", "how"),
    [
        ("model.json", "truncated"),
        ("model.safetensors", "bit-flipped"),
        ("run.json", "missing"),
        ("manifest.json", "empty"),
        ("manifest.json", "missing"),
    ],
)
def test_a_damaged_newest_one_is_noticed_and_the_previous_one_used(tmp_path, file, how):
    checkpoints = saved(tmp_path, 3, 6)
    break_file(tmp_path / "step-00000006" / file, how)
    with pytest.warns(BitcycleWarning, match=rf"step-00000006: {file}.*step 3"):
        loaded = checkpoints.load_newest()
    assert is_of(loaded, 3)
    assert checkpoints.steps() == [3, 6]


def test_a_flipped_bit_in_any_byte_of_a_manifest_is_noticed(tmp_path):
    saved(tmp_path, 3)
    path = tmp_path / "step-00000003"
    content = (path / "manifest.json").read_bytes()
    assert find_damage(path) is None
    for index in range(len(content)):
        changed = bytearray(content)
        changed[index] ^= 1 << index % 8
        (path / "manifest.json").write_bytes(changed)
        assert find_damage(path) is not None, (index, bytes(changed))


def test_a_checkpoint_of_another_form_is_refused(tmp_path):
    checkpoints = saved(tmp_path, 3)
    manifest = tmp_path / "step-00000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"form": {FORM}', '"form": 7'))
    with pytest.raises(CheckpointError, match=f"form 7, expected {FORM}"):
        checkpoints.load_newest()


def test_a_file_that_the_manifest_does_not_know_is_not_read(tmp_path):
    checkpoints = saved(tmp_path, 3)
    (tmp_path / "step-00000003" / "extra.json").write_text('{"a": 1}')
    _, parts = checkpoints.load_newest()
    assert sorted(parts) == ["model", "run"]


def test_when_all_are_damaged_the_error_lists_them_and_nothing_is_deleted(tmp_path):
    checkpoints = saved(tmp_path, 3, 6)
    for step in (3, 6):
        break_file(tmp_path / checkpoint_name(step) / "model.safetensors", "truncated")
    before = files_below(tmp_path)
    with pytest.raises(CheckpointError, match="00006: model.*00003: model"):
        checkpoints.load_newest()
    assert files_below(tmp_path) == before


def test_a_damaged_best_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best(3, state(3))
    break_file(tmp_path / "best" / "model.safetensors", "bit-flipped")
    with pytest.raises(CheckpointError, match="model.safetensors"):
        checkpoints.load_best()


def test_resuming_before_a_damaged_one_never_deletes_a_complete_one(tmp_path):
    """keep=1, 6 damaged, resumed from 3 and stopped at 4: 4 must be what is kept."""
    checkpoints = saved(tmp_path, 3, 6, keep=2)
    break_file(tmp_path / "step-00000006" / "model.safetensors", "truncated")
    checkpoints.keep = 1
    checkpoints.save(4, state(4))
    assert checkpoints.steps() == [4, 6]
    with pytest.warns(BitcycleWarning, match="step 4"):
        assert is_of(checkpoints.load_newest(), 4)
    checkpoints.save(6, state(6))
    assert checkpoints.steps() == [6]
    assert is_of(checkpoints.load_newest(), 6)


def fail_with_full_disk(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("function", ["write_bytes", "mkdir", "rename"])
def test_a_full_disk_is_a_clear_error_and_the_last_one_is_intact(tmp_path, monkeypatch, function):
    checkpoints = saved(tmp_path, 3)
    before = files_below(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, function, fail_with_full_disk)
        with pytest.raises(CheckpointError, match="step 6 .*No space left.*step 3"):
            checkpoints.save(6, state(6))
    assert files_below(tmp_path) == before
    checkpoints.save(6, state(6))
    assert is_of(checkpoints.load_newest(), 6)


def test_all_files_are_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    import bitcycle_lab.train.checkpoint as module

    calls = []
    rename = Path.rename
    monkeypatch.setattr(module, "sync", lambda path: calls.append(path.name))
    monkeypatch.setattr(Path, "rename", lambda a, b: (calls.append("rename"), rename(a, b))[1])
    Checkpoints(tmp_path).save(3, state(3))
    assert sorted(calls[:4]) == sorted(FILES)
    assert calls[4:] == ["step-00000003.tmp", "rename", tmp_path.name]


def test_what_a_killed_process_left_is_removed_by_the_owner_and_by_no_reader(tmp_path):
    checkpoints = saved(tmp_path, 3)
    (tmp_path / "step-00000006.tmp").mkdir()
    (tmp_path / "step-00000006.tmp" / "model.json").write_text("{")
    assert is_of(checkpoints.load_newest(), 3)
    assert (tmp_path / "step-00000006.tmp").exists()  # perhaps another process is writing it
    checkpoints.remove_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003"]


def test_a_best_that_was_moved_aside_when_the_process_died_is_put_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best(3, state(3))
    (tmp_path / "best").rename(tmp_path / "best.old.tmp")
    (tmp_path / "best.tmp").mkdir()
    checkpoints.remove_leftovers()
    assert is_of(checkpoints.load_best(), 3)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip
SHAPES = [(), (0,), (3,), (2, 3), (1, 0, 2)]

keys = st.one_of(
    st.text(max_size=4),
    st.sampled_from(["a", "a.b", "b", "$tensor", "$items", "0"]),
    st.integers(-3, 3),
    st.none(),
    st.tuples(st.integers(0, 2), st.text(max_size=2)),
)
tensors = st.builds(
    lambda dtype, shape, seed: torch.randint(
        0, 2 if dtype == torch.bool else 100, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.sampled_from(DTYPES),
    st.sampled_from(SHAPES),
    st.integers(0, 99),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), tensors
)
counters = st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), st.integers()).map(
    Counter
)
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        counters,
    ),
    max_leaves=12,
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(states)
@settings(max_examples=100)
def test_any_state_comes_back_from_its_files(state):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = write_state(folder, "part", state)
        assert sorted(written) == sorted(folder.iterdir())
        assert same(read_state(folder, "part"), state)


def test_tensors_of_the_same_path_are_kept_apart():
    state = {"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}}
    assert same(join_state(*split_state(state)), state)


def test_a_saved_tensor_is_a_copy_and_tied_weights_are_saved_twice(tmp_path):
    weight = torch.ones(2, 3)
    _, found = split_state({"embedding": weight, "decoder": weight, "view": weight.t()})
    weight.zero_()
    assert all(bool((tensor == 1).all()) for tensor in found.values())
    write_state(tmp_path, "part", {"embedding": weight, "decoder": weight})
    assert set(read_state(tmp_path, "part")) == {"embedding", "decoder"}


def test_infinity_survives_because_plateau_schedulers_hold_it(tmp_path):
    write_state(tmp_path, "part", {"best": float("inf"), "worst": -float("inf")})
    assert read_state(tmp_path, "part") == {"best": float("inf"), "worst": -float("inf")}


def test_a_value_of_another_type_is_an_error_that_says_where():
    with pytest.raises(TypeError, match=r"'a\.b' is a set"):
        split_state({"a": {"b": {1, 2}}})


@pytest.mark.parametrize("name", ["part.json", "part.safetensors"])
def test_a_pickle_in_a_file_is_not_executed(tmp_path, name):
    write_state(tmp_path, "part", {"w": torch.ones(1)})
    target = tmp_path / "executed"
    (tmp_path / name).write_bytes(pickle.dumps(Payload(target)))
    with pytest.raises(Exception, match=r".+"):
        read_state(tmp_path, "part")
    assert not target.exists()
    pickle.loads((tmp_path / name).read_bytes()).close()  # the payload would have worked
    assert target.exists()


def test_the_runner_has_no_way_to_unpickle_anything():
    """By `ast`: no such import, and no call of torch.load."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    calls = {"torch.load", "np.load", "numpy.load"}
    paths = list(Path(bitcycle_lab.train.__file__).parent.rglob("*.py"))
    assert len(paths) > 10
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = imports_of(tree, "bitcycle_lab.train") | {
            ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        }
        assert not used & calls, path
        assert not {name.split(".")[0] for name in used} & modules, path
