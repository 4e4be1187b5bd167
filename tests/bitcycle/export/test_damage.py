"""Exported files: loaded as they were written, or refused in words; the model stays as it was."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitcycle.export import export_model, load_exported
from bitcycle.files import FORM
from tests.bitcycle.export.models import conv_net, images, ready
from tests.damage import Damage, damages, json_values, little_memory, paths_in, replaced

KINDS = {
    "safetensors": ("model.safetensors", {"to": "safetensors"}),
    "codes": ("model.safetensors", {"to": "safetensors", "codes": True}),
    "torch": ("model.pt", {"to": "torch"}),
    "onnx": ("model.onnx", {"to": "onnx"}),
}
CHECKED = ("model.safetensors", "model.pt")  # whose bytes have a checksum
quick = settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))


class Files(dict[str, dict[str, bytes]]):
    """Without a repr of thousands of bytes."""

    def __repr__(self) -> str:
        return "Files"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of each kind."""
    files = Files()
    for kind, (name, options) in KINDS.items():
        folder = tmp_path_factory.mktemp(kind)
        model = ready(conv_net(), images(), "w4a6")
        export_model(model, (images(),), path=folder / name, **options)
        files[kind] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files


def outputs_of(folder: Path, kind: str) -> Any:
    name = KINDS[kind][0]
    model = load_exported(folder / name) if kind == "onnx" else load_exported(
        folder / name, conv_net()
    )  # fmt: skip
    return model(images())


def check(exported: Files, kind: str, name: str, content: bytes) -> None:
    """Loads as it was, or is refused by name and leaves the model that was to take it alone."""
    model, said = conv_net(), None
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        for file, data in {**exported[kind], name: content}.items():
            (Path(folder) / file).write_bytes(data)
        path = Path(folder) / KINDS[kind][0]
        try:
            with little_memory():
                loaded = load_exported(path)
                if kind != "onnx":
                    loaded = load_exported(path, model)
        except (ValueError, FileNotFoundError) as error:
            said = str(error)
    if said is not None:
        assert str(folder) in said
        after = model.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[key], value) for key, value in before.items())
    elif name in CHECKED:
        assert content == exported[kind][name] or is_same(exported, kind, loaded)


def is_same(exported: Files, kind: str, model: Any) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        for file, data in exported[kind].items():
            (Path(folder) / file).write_bytes(data)
        return torch.equal(model(images()), outputs_of(Path(folder), kind))


@st.composite
def accidents(draw: Any) -> tuple[float, Damage]:
    return draw(st.floats(0, 0.999)), draw(damages)


@pytest.mark.parametrize("kind", KINDS)
@given(accidents())
@quick
def test_a_damaged_file_is_what_it_was_or_is_refused(exported, kind, accident):
    place, damage = accident
    name = sorted(exported[kind])[int(place * len(exported[kind]))]
    check(exported, kind, name, damage.to(exported[kind][name]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(accidents())
@settings(quick, max_examples=100)
def test_that_holds_for_many_accidents(exported, kind, accident):
    place, damage = accident
    name = sorted(exported[kind])[int(place * len(exported[kind]))]
    check(exported, kind, name, damage.to(exported[kind][name]))


@pytest.mark.parametrize("kind", ["safetensors", "codes"])
@given(st.floats(0, 0.999), json_values())
@settings(quick, max_examples=15)
def test_a_description_that_someone_changed_is_taken_or_refused(exported, kind, place, new):
    value = json.loads(exported[kind]["model.json"])
    places = paths_in(value)
    content = json.dumps(replaced(value, places[int(place * len(places))], new)).encode()
    check(exported, kind, "model.json", content)


def with_header(header: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header


def zipped(record: bytes) -> bytes:
    """A .pt whose only record unpacks to a gigabyte."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", record)
        archive.writestr("model/version", b"3\n")
    return buffer.getvalue()


def larger_than_its_record() -> bytes:
    """A tensor that says it has more numbers than its record."""
    buffer = io.BytesIO()
    torch.save({"about": {"form": FORM}, "state": {"w": torch.zeros(255)}}, buffer)
    records = {}
    with zipfile.ZipFile(buffer) as archive:
        for info in archive.infolist():
            records[info.filename] = archive.read(info)
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as archive:
        for name, content in records.items():
            archive.writestr(name, content.replace(b"K\xff", b"M\xff\xff"))
    return other.getvalue()


MADE_TO_HURT = {
    "a header of 8 exabytes": ("safetensors", "model.safetensors", with_header(b"{}", 2**63)),
    "a tensor of 4 TB": (
        "safetensors", "model.safetensors",
        with_header(b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}') + b"abc",
    ),
    "a description nested without end": ("safetensors", "model.json", b"[" * 100_000),
    "an archive that unpacks to a gigabyte": ("torch", "model.pt", zipped(bytes(2**28))),
    "a tensor larger than its record": ("torch", "model.pt", larger_than_its_record()),
    "a torch file of 2018": ("torch", "model.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),
}  # fmt: skip


@pytest.mark.parametrize("what", MADE_TO_HURT)
def test_a_file_that_is_made_to_hurt_is_refused(exported, what, tmp_path):
    kind, name, content = MADE_TO_HURT[what]
    for file, data in {**exported[kind], name: content}.items():
        (tmp_path / file).write_bytes(data)
    if name == "model.safetensors":  # a description that knows this file
        facts = json.loads(exported[kind]["model.json"])
        facts["sha256"] = hashlib.sha256(content).hexdigest()
        (tmp_path / "model.json").write_text(json.dumps(facts))
    with little_memory(), pytest.raises(ValueError, match="damaged"):
        load_exported(tmp_path / KINDS[kind][0], conv_net())


def test_a_file_of_another_architecture_leaves_the_model_alone(exported, tmp_path):
    for file, data in exported["safetensors"].items():
        (tmp_path / file).write_bytes(data)
    model = conv_net()
    model[6] = torch.nn.Linear(20, 4)
    kinds = [type(module) for module in model]
    with pytest.raises(ValueError, match=r"6\.bias"):
        load_exported(tmp_path / "model.safetensors", model)
    assert [type(module) for module in model] == kinds


def test_a_file_beside_the_description_of_another_export_is_refused(exported, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(exported["codes"]["model.safetensors"])
    (tmp_path / "model.json").write_bytes(exported["safetensors"]["model.json"])
    with pytest.raises(ValueError, match="model.safetensors"):
        load_exported(tmp_path / "model.safetensors", conv_net())
