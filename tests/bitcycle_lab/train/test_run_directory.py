"""The folder of a run: made once, owned by one process, its metrics continued."""

import fcntl
import json
import os
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.files import FORM
from bitcycle_lab.train.run_directory import LOCK, RunBusyError, RunDirectory, environment
from tests.bitcycle_lab.train.small import small


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create(small(tmp_path))
    return directory


def test_a_new_folder_holds_the_configuration_and_the_environment(directory, tmp_path):
    assert sorted(path.name for path in directory.path.iterdir()) == ["config.yaml", "env.json"]
    assert directory.read_config() == small(tmp_path)
    assert directory.exists
    assert not directory.is_finished


def test_the_environment_says_what_a_reader_needs_to_repeat_the_run():
    found = environment()
    assert {
        "bitcycle", "torch", "python", "platform", "processor", "device", "num_threads",
        "num_cpus", "git_revision", "command",
    } <= set(found)  # fmt: skip
    json.dumps(found)


@pytest.mark.parametrize("name", ["config.yaml", "notes.txt"])
def test_a_folder_with_anything_in_it_is_not_touched(tmp_path, name):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(ValueError, match="not empty"):
        RunDirectory(folder).create(small(tmp_path))
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"


def test_a_folder_whose_making_was_interrupted_is_made_again(tmp_path):
    """Killed before config.yaml got its name, a run must still be startable."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "env.json").write_text("{}")
    (folder / ".config.yaml.123.tmp").write_text("name: sm")
    directory = RunDirectory(folder)
    assert not directory.exists
    directory.create(small(tmp_path))
    assert directory.read_config() == small(tmp_path)
    directory.remove_leftovers()
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "env.json"]


@pytest.mark.parametrize(("form", "found"), [("form: 2\n", "2"), ("", "None")])
def test_a_run_of_another_form_or_of_none_is_refused(directory, form, found):
    text = directory.config_file.read_text().replace(f"form: {FORM}\n", form)
    directory.config_file.write_text(text)
    with pytest.raises(ValueError, match=f"config.yaml has form {found}, expected {FORM}"):
        directory.read_config()


def test_the_first_configuration_is_kept_until_env_json_is_lost(directory, tmp_path):
    assert directory.read_first_config() == small(tmp_path)
    (directory.path / "env.json").unlink()
    assert directory.read_first_config() is None


def test_a_folder_without_a_configuration_is_not_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"config\.yaml"):
        RunDirectory(tmp_path).read_config()


def test_a_run_is_held_by_one_at_a_time(directory):
    with directory.locked():
        held = (directory.path / ".lock").read_text()
        with (
            pytest.raises(ValueError, match=held),
            directory.locked(),
        ):
            pass
        assert (directory.path / ".lock").read_text() == held
    with directory.locked():
        pass


def lines(*steps):
    return [{"step": step, "loss": step / 2} for step in steps]


def test_metrics_are_appended_line_by_line(directory):
    directory.continue_metrics(0)
    for line in lines(1, 2):
        directory.add_metrics(line)
        assert directory.read_metrics()[-1] == line  # readable while the run trains
    directory.sync_metrics()
    directory.close()
    directory.close()
    assert directory.read_metrics() == lines(1, 2)


def test_lines_beyond_the_checkpoint_are_removed_when_a_run_resumes(directory):
    directory.continue_metrics(0)
    for line in lines(2, 4, 4, 6, 8):
        directory.add_metrics(line)
    directory.close()
    directory.continue_metrics(4)
    directory.add_metrics(*lines(6))
    directory.close()
    assert directory.read_metrics() == lines(2, 4, 4, 6)


@pytest.mark.parametrize("rest", ['{"step": 6, "lo', "\x00\x00"])
def test_a_half_written_last_line_is_left_out_and_gone_afterwards(directory, rest):
    whole = "".join(json.dumps(line) + "\n" for line in lines(2, 4))
    directory.metrics_file.write_text(whole + rest)
    assert directory.read_metrics() == lines(2, 4)
    directory.continue_metrics(6)
    directory.close()
    assert directory.metrics_file.read_text() == whole


def test_a_damaged_line_does_not_take_the_others_with_it(directory):
    texts = [json.dumps(line).encode() for line in lines(2, 4, 6)]
    texts[1] = b"\xff" + texts[1][1:]
    directory.metrics_file.write_bytes(b"\n".join(texts) + b"\n")
    assert directory.read_metrics() == lines(2, 6)


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(1, 200)) * 20,
        b"not metrics",
        b'{"step": 2}\n\xff\xfe\n{"step": 4}\n',
        b'{"step": 2}\n{"step": 3, "lo\n{"step": 4}\n',  # a cut, but before a flushed line
        b'{"step": 2}\n\x9f\x83\x01',
        b"[]\n",
    ],
)
def test_damage_of_the_metrics_before_the_checkpoint_is_noticed_on_resume(directory, content):
    directory.metrics_file.write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line \d"):
        directory.continue_metrics(4)
    assert directory.metrics_file.read_bytes() == content  # nothing is lost
    directory.continue_metrics(-1)  # without a checkpoint the run starts again
    directory.close()
    assert directory.read_metrics() == []


@given(content=st.binary(min_size=8), step=st.integers(0, 100))
def test_random_bytes_are_never_taken_for_metrics(content, step):
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(folder)
        directory.metrics_file.write_bytes(content)
        stripped = content.strip(b"\0\n")
        if stripped and not stripped.startswith(b"{"):
            with pytest.raises(ValueError, match="metrics"):
                directory.continue_metrics(step)


def test_a_locked_run_is_busy_and_a_free_one_is_not(directory):
    directory.check_idle()
    assert not directory.is_locked
    with directory.locked():
        assert directory.is_locked
        with pytest.raises(RunBusyError, match=str(os.getpid())):
            directory.check_idle()
    directory.check_idle()


def test_who_asks_whether_a_run_is_locked_does_not_take_it(directory):
    with (directory.path / LOCK).open("a+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (handle, fcntl.LOCK_UN)).start()
        with directory.locked():
            assert directory.is_locked


def test_a_typing_error_in_a_configuration_is_not_blamed_on_a_missing_import(directory):
    text = directory.config_file.read_text()
    directory.config_file.write_text(text.replace("momentum:", "momentun:"))
    with pytest.raises(ValueError, match="momentun") as error:
        directory.read_config()
    assert "--import" not in str(error.value)
    directory.config_file.write_text(text.replace("quantizer: sbm", "quantizer: mine"))
    with pytest.raises(ValueError, match="--import"):
        directory.read_config()


def test_a_tasks_files_are_written_once(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write_missing({"a.json": "1"})
    directory.write_missing({"a.json": "2", "b.json": "3"})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "a.json": "1",
        "b.json": "3",
    }


def test_what_is_lost_of_the_environment_is_nothing(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.read_environment() == {}
    for text in ("{", "[]", '"a"'):
        (tmp_path / "env.json").write_text(text)
        assert directory.read_environment() == {}
    (tmp_path / "env.json").write_text('{"num_threads": 2}')
    assert directory.read_environment() == {"num_threads": 2}
