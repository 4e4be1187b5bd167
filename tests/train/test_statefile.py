"""State splits into JSON and tensors and comes back as it was; nothing in a file is executed."""

import ast
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bitcycle.train
from bitcycle.train.checkpoint import join_state, read_state, split_state, write_state
from tests.data.layouts import Payload
from tests.test_layering import imports_of

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
@settings(max_examples=100, deadline=None)
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
    paths = list(Path(bitcycle.train.__file__).parent.rglob("*.py"))
    assert len(paths) > 10
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = imports_of(tree, "bitcycle.train") | {
            ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        }
        assert not used & calls, path
        assert not {name.split(".")[0] for name in used} & modules, path
