"""What one process does for all; with several processes it is tested by tests/e2e."""

from types import SimpleNamespace

import pytest

from bitcycle.train.together import on_main

ALONE = SimpleNamespace(is_main=True, world_size=1)


def test_the_main_process_acts():
    done = []
    on_main(ALONE, lambda: done.append(1))
    assert done == [1]


def test_what_it_raises_is_raised():
    def fail():
        raise ValueError("taken")

    with pytest.raises(ValueError, match="taken"):
        on_main(ALONE, fail)


@pytest.mark.parametrize("failure", [None, ValueError("taken")])
def test_other_processes_do_not_act_and_share_its_failure(monkeypatch, failure):
    def broadcast(shared, src):
        shared[:] = [failure]

    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    other = SimpleNamespace(is_main=False, world_size=2)
    if failure is None:
        on_main(other, lambda: pytest.fail("acted"))
    else:
        with pytest.raises(ValueError, match="taken"):
            on_main(other, lambda: pytest.fail("acted"))
