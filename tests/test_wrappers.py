"""Conversion of models inside DataParallel, DDP, FSDP2 and torch.compile, before or after."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import bitcycle as bc
from tests.toys import linears, naive_linear, net, randn


@pytest.fixture
def one_process():
    """A process group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "DDP": DistributedDataParallel,
    "compile": compiled,
    "compiled DDP": lambda model: compiled(DistributedDataParallel(model)),
    "DDP of compiled": lambda model: DistributedDataParallel(compiled(model)),
}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("wrapper", "order"),
    [
        *((wrapper, "converted before") for wrapper in WRAPPERS),
        ("DataParallel", "converted after"), ("DDP", "converted after"),
        ("compile", "run, then converted"), ("compiled DDP", "run, then converted"),
    ],
)  # fmt: skip
def test_a_wrapped_model_computes_and_learns_quantized(wrapper, order):
    plain, x = linears(4, 4), randn(8, 4)
    if order == "converted before":
        model = WRAPPERS[wrapper](bc.quantize_model(plain))
    else:
        model = WRAPPERS[wrapper](plain)
        if order == "run, then converted":
            assert torch.allclose(model(x), plain(x))
        assert bc.quantize_model(model) is model
    bc.set_precision(model, "w3a3e8")
    assert torch.allclose(model(x), naive_linear(x, plain[0], 3), atol=1e-6)
    model(x).square().sum().backward()
    assert plain[0].weight.grad.isfinite().all()
    assert [row.name for row in bc.audit(model, x).rows] == ["0"]
    assert str(bc.get_precision(model)) == "w3a3e8"


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("wrapper", ["DDP", "DDP of compiled"])
def test_ddp_broadcasts_ranges_but_neither_bits_nor_health(wrapper):
    model = bc.quantize_model(net())
    wrapped = WRAPPERS[wrapper](model)
    broadcast = {id(buffer) for buffer in wrapped.modules_buffers}
    assert id(model.conv.act_range) in broadcast
    assert id(model.norm.running_mean) in broadcast
    assert id(model.conv.control) not in broadcast
    assert id(model.conv.health) not in broadcast


@pytest.mark.usefixtures("one_process")
def test_a_scheduler_and_a_float_state_see_through_wrappers():
    model = compiled(DistributedDataParallel(bc.quantize_model(linears(4, 4, 4))))
    bits = bc.PrecisionScheduler(model, forward={"*": 8, "1": 4}, total_steps=2)
    assert {name: str(p) for name, p in bits.precision.items()} == {"0": "w8a8", "1": "w4a4"}
    linears(4, 4, 4).load_state_dict(bc.float_state_dict(model), strict=True)


@pytest.mark.usefixtures("one_process")
def test_a_wrapped_model_is_converted_back():
    plain = linears(4, 4)
    model = DistributedDataParallel(bc.quantize_model(plain))
    bc.unquantize_model(model)
    assert type(plain[0]) is nn.Linear
    assert "_ddp_params_and_buffers_to_ignore" not in plain.__dict__


@pytest.mark.usefixtures("one_process")
def test_a_sharded_model_is_refused_and_the_audit_says_why():
    model = linears(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match=r"parameter '0.weight' is sharded .*: convert first"):
        bc.quantize_model(model)
    assert "sharded (fully_shard): convert first" in bc.audit(model)["0"].reason


@pytest.mark.usefixtures("one_process")
def test_a_converted_model_can_be_sharded():
    model, x = bc.quantize_model(linears(4, 4)), randn(8, 4)
    bc.set_precision(model, "w3a3e8")
    expected = naive_linear(x, model[0], 3)
    for module in (*model, model):
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    bc.set_precision(model, "w3a3e8")
    output = model(x)
    assert torch.allclose(output, expected, atol=1e-6)
    output.sum().backward()
    assert model[0].weight.grad.to_local().isfinite().all()
    assert bc.audit(model)["0"].is_converted
