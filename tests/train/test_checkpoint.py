"""Checkpoints: whole or passed over, kept as many as asked, never half-named."""

import errno
from pathlib import Path

import pytest
import torch

from bitcycle.train.checkpoint import CheckpointError, Checkpoints, checkpoint_name, damage
from bitcycle.warnings import BitcycleWarning
from tests.train.small import files_below

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
    with pytest.warns(BitcycleWarning, match=rf"step-00000006: {file}.*going on from step 3"):
        loaded = checkpoints.load_newest()
    assert is_of(loaded, 3)
    assert checkpoints.steps() == [3, 6]


def test_a_flipped_bit_in_any_byte_of_a_manifest_is_noticed(tmp_path):
    saved(tmp_path, 3)
    path = tmp_path / "step-00000003"
    content = (path / "manifest.json").read_bytes()
    assert damage(path) is None
    for index in range(len(content)):
        changed = bytearray(content)
        changed[index] ^= 1 << index % 8
        (path / "manifest.json").write_bytes(changed)
        assert damage(path) is not None, (index, bytes(changed))


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
    with pytest.raises(CheckpointError, match="no usable.*00006: model.*00003: model.*start the"):
        checkpoints.load_newest()
    assert files_below(tmp_path) == before


def test_a_damaged_best_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best(3, state(3))
    break_file(tmp_path / "best" / "model.safetensors", "bit-flipped")
    with pytest.raises(CheckpointError, match="model.safetensors is not what was written"):
        checkpoints.load_best()


def test_going_on_before_a_damaged_one_never_deletes_what_is_whole(tmp_path):
    """keep=1, 6 damaged, resumed from 3 and stopped at 4: 4 must be what is kept."""
    checkpoints = saved(tmp_path, 3, 6, keep=2)
    break_file(tmp_path / "step-00000006" / "model.safetensors", "truncated")
    checkpoints.keep = 1
    checkpoints.save(4, state(4))
    assert checkpoints.steps() == [4, 6]
    with pytest.warns(BitcycleWarning, match="going on from step 4"):
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
        with pytest.raises(CheckpointError, match="step 6 could not.*No space left.*of step 3"):
            checkpoints.save(6, state(6))
    assert files_below(tmp_path) == before
    checkpoints.save(6, state(6))
    assert is_of(checkpoints.load_newest(), 6)


def test_a_full_disk_at_the_first_one_says_that_there_is_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", fail_with_full_disk)
    with pytest.raises(CheckpointError, match="there is no other one"):
        Checkpoints(tmp_path).save(3, state(3))


def test_all_files_are_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    import bitcycle.train.checkpoint as module

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
