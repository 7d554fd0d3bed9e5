"""What DDP adds to a process, by torch's own reducer: small real tensors, as its C++ code takes no
fake ones.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from hpctrain.fit.layout import Layout
from hpctrain.fit.memory import gpu_memory
from hpctrain.fit.shape import read_shape

CONFIG = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
ALONE = Layout(micro_batch=1, length=32)
FOUR = Layout(micro_batch=1, length=32, gpus_per_node=4)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of four, of which the others are not there."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    distributed.destroy_process_group()


def _sent(_state, bucket):  # DDP refuses annotations that are not its own types
    """Play the reduction of a bucket: the fake group gives nothing back, and DDP's own hook wants a
    tensor.
    """
    import torch

    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@pytest.mark.torch
@pytest.mark.usefixtures("group")
def test_the_buckets_are_a_second_copy_of_the_gradients_at_the_peak() -> None:
    import fit_tracked
    import torch

    def tracked(*, ddp: bool) -> int:
        run = fit_tracked._Run(fit_tracked._model(fit_tracked._config(CONFIG, None), ALONE), ALONE)
        if ddp:  # accelerate's defaults: gradients are no views of the buckets
            with run.tracker:
                run.model = torch.nn.parallel.DistributedDataParallel(run.model)
            run.model.register_comm_hook(None, _sent)
        return run.step().peak

    with fit_tracked.on_cuda():
        alone, of_four = tracked(ddp=False), tracked(ddp=True)
    shape = read_shape(CONFIG)
    assert of_four - alone == 4 * shape.parameters
    assert gpu_memory(shape, FOUR).allocated - gpu_memory(shape, ALONE).allocated == of_four - alone
