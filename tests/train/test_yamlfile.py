"""YAML files: plain data, or one line that names the file."""

import pytest

from bitcycle.train.yamlfile import MOST_VALUES, read_yaml


def read(folder, text):
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path, purpose="tests")


def test_plain_data_comes_back(tmp_path):
    assert read(tmp_path, "a: [1, 2.5, x, null, true]\nb: {c: 3}") == {
        "a": [1, 2.5, "x", None, True],
        "b": {"c": 3},
    }
    assert read(tmp_path, "") is None


def test_aliases_and_merged_keys_are_written_out(tmp_path):
    text = "base: &base {lr: 1, steps: 2}\nown: {<<: *base, lr: 3}\nagain: *base"
    assert read(tmp_path, text)["own"] == {"lr": 3, "steps": 2}
    assert read(tmp_path, text)["again"] == {"lr": 1, "steps": 2}


def test_aliases_that_multiply_are_refused_before_anything_is_made(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    with pytest.raises(ValueError, match=r"file\.yaml.*1\.\d+e\+20 values.*at most 100,000"):
        read(tmp_path, "\n".join(lines))


def test_a_long_file_is_read(tmp_path):
    assert len(read(tmp_path, f"[{'x, ' * 9_000}]")) == 9_000 < MOST_VALUES


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1", "expected ',' or ']'"),
        ("a: &a [*a]", "an alias stands inside what it stands for"),
        ("[" * 1_000, "nested too deeply"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: !!int many", "invalid literal"),
        ("a: !!bool maybe", "maybe"),
        ("a: !!timestamp never", "groupdict"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: 1\n---\na: 2", "expected a single document"),
        (f"a: {'9' * 5_000}", "4300 digits"),
    ],
)
def test_anything_else_is_one_line_that_names_the_file(tmp_path, text, reason):
    with pytest.raises(ValueError, match="is not valid YAML") as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    assert message.startswith(str(tmp_path / "file.yaml"))


def test_bytes_that_are_no_text_are_said(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"file\.yaml is not a text file"):
        read_yaml(path, purpose="tests")
