"""What is said about the processor."""

import torch

from bitcycle.bench.processor import Processor, find_processor
from bitcycle.kernels import exact_bits


def test_the_features_found_are_those_the_kernels_go_by():
    found = find_processor()
    assert found.exact_bits == exact_bits("cpu")
    assert found.num_threads == torch.get_num_threads()
    assert found.torch_version == torch.__version__
    assert found.name


def test_the_text_names_every_feature():
    processor = Processor(
        name="Some CPU",
        capability="AVX512",
        has_vnni=True,
        has_bf16=True,
        has_amx=False,
        exact_bits=16,
        num_threads=2,
        torch_version="2.6.0",
    )
    assert str(processor) == (
        "Some CPU, 2 threads, torch 2.6.0\n"
        "capability AVX512, VNNI yes, BF16 yes, AMX no, int8 products exact up to 16 bits of both "
        "operands together"
    )
