"""The first lines of the log: within 80 columns, one mark, and read back as they were meant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpctrain.fit import gpus
from hpctrain.fit.asked import layout_of
from hpctrain.fit.memory import gpu_memory
from hpctrain.fit.shape import read_shape
from hpctrain.fit.speed import tokens_per_second
from hpctrain.training import start_table
from hpctrain.training.estimate import Job
from hpctrain.training.expectation import Device, Expectation, nodes_of
from hpctrain.training.lengths import Lengths

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "tie_word_embeddings": True,
    "max_position_embeddings": 131072, "hidden_act": "silu", "rms_norm_eps": 1e-5,
}  # fmt: skip
GIB = 2**30
H100 = Device(name="NVIDIA H100 80GB HBM3", memory=85_045_542_912)
words_of_text = st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40), min_size=1, max_size=30)


def expected(device: Device = H100, **options: object) -> Expectation:
    shape = read_shape(LLAMA)
    layout = layout_of(options, nodes=1, gpus_per_node=4, sharding="ddp", shape=shape)
    gpu = gpus.find(device.name or "", device.memory)
    speed = None if gpu is None else tokens_per_second(shape, layout, gpu)
    return Expectation(shape=shape, layout=layout, memory=gpu_memory(shape, layout), speed=speed, gpu=gpu, device=device)


@given(st.dictionaries(st.sampled_from(start_table.LABELS), words_of_text.map(" ".join)))
def test_it_fits_into_80_columns_and_is_read_back(table: dict[str, str]) -> None:
    table = {label: table[label] for label in start_table.LABELS if label in table}
    lines = start_table.lines(table)
    assert all(len(line) <= 80 and line.startswith("[train] ") for line in lines)
    read = start_table.parse(["[train] starts anew from m", *lines, "[train] begin: step=0/9", "[train]                  no part of it"])
    # A word that is longer than a line is cut, so spaces do not count.
    assert {label: value.replace(" ", "") for label, value in read.items()} == {k: v.replace(" ", "") for k, v in table.items()}


def test_the_last_table_of_a_log_counts() -> None:
    log = [*start_table.lines({"model": "a", "time": "b"}), "[train] step=1/2 loss=1", *start_table.lines({"model": "c", "steps": "9"})]
    assert start_table.parse(log) == {"model": "c", "steps": "9"}
    assert start_table.parse(["[train] time: step 6 of 24, 0.08 s a step"]) == {}


def test_numbers() -> None:
    said = [start_table.big(number) for number in (0, 512, 9999, 10_000, 999_499, 999_999, 1_235_814_400, 8.03e9, 2.1e12)]
    assert said == ["0", "512", "9999", "10 k", "999 k", "1 M", "1.24 B", "8.03 B", "2.1 T"]


# -- expected memory, speed and time -----------------------------------------------------------------------------------


def test_the_peak_stands_against_what_the_gpu_has() -> None:
    found = expected(per_device_train_batch_size=4, max_length=2048)
    assert found.memory is not None
    said = start_table.peak_words(found)
    assert said == f"{found.memory.total / GIB:.1f} GiB of the 79.2 GiB of NVIDIA H100 80GB HBM3 ({found.memory.total / H100.memory:.0%})"  # type: ignore[operator]
    small = start_table.peak_words(expected(Device(name="Tesla T4", memory=15 * GIB), per_device_train_batch_size=16, max_length=4096))
    assert small.endswith("; more than it has: hpctrain fit shows what fits")


def test_what_is_not_known_says_why() -> None:
    assert start_table.peak_words(Expectation()) == "unknown (it trains on the CPU)"
    assert start_table.peak_words(Expectation(why="config.json lacks hidden_size")) == "unknown (config.json lacks hidden_size)"
    lengths = Lengths(rows=100, examples=100, tokens=51200, longest=1024, squares=1, packed=False)
    unknown = Expectation(device=Device(name="Some GPU", memory=GIB))
    said = start_table.time_words(unknown, lengths, _Args(), steps_left=10, job=Job(end=7200.0), now=0.0, save_s=None)
    assert said == "unknown (the speed of Some GPU is not known); measured after a few steps; the time limit leaves 2.0 h"


class _Args:
    packing = False


def test_the_time_is_of_the_tokens_that_are_there() -> None:
    found = expected(per_device_train_batch_size=4, max_length=1024)
    assert found.speed is not None
    lengths = Lengths(rows=100, examples=100, tokens=51200, longest=1024, squares=1, packed=False)  # half of what fits
    hours = 3_000_000 * found.speed.step_s / 2 / 3600
    job = Job(end=3600 * 24.0, began=0.0, mode="requeue", most=100)
    said = start_table.time_words(found, lengths, _Args(), steps_left=3_000_000, job=job, now=0.0, save_s=None)
    assert said.startswith(f"will not finish in 24:00:00: {hours:.0f} h at this speed; it will requeue ")
    assert said.endswith("; expected, not measured")


def test_utilisation_is_of_the_bfloat16_peak() -> None:
    found = expected(per_device_train_batch_size=4, max_length=2048)
    assert found.gpu is not None
    assert found.gpu.bf16
    one = found.mfu(10_000.0, 2048.0, 4)
    assert one is not None
    # 6 operations for each weight and token, and attention on top: by hand.
    weights = 16 * (2048 * (2048 + 512 + 512 + 2048) + 3 * 2048 * 8192) + 128256 * 2048
    attention = 3 * 16 * 4 * 2048 * 2048 / 2
    by_hand = 10_000 * (6 * weights + attention) / (4 * found.gpu.bf16)
    assert abs(one / by_hand - 1) < 0.01
    assert Expectation(why="x").mfu(1.0, None, 1) is None
    assert found.mfu(10_000.0, 4.0, 4) < one  # type: ignore[operator]


def test_epochs_as_the_trainer_counts_them() -> None:
    class Args:
        per_device_train_batch_size, gradient_accumulation_steps, world_size, dataloader_drop_last = 4, 1, 2, False

    assert start_table._steps(Args(), 6, 0, 3) == "6, 6 epochs"  # fewer rows than a step takes
    assert start_table._steps(Args(), 6, 2, 17) == "6, 2 epochs; 2 of them done"
    Args.dataloader_drop_last = True
    assert start_table._steps(Args(), 6, 0, 17) == "6, 3 epochs"
    few = Lengths(rows=3, examples=3, tokens=30, longest=12, squares=1, packed=False)
    assert start_table._tokens(Args(), few) == "30 on average without padding, 36 at most"


def test_the_record_names_every_part() -> None:
    record = expected().as_record()
    assert sum(record["predicted"]["parts"].values()) == record["predicted"]["total"]
    assert record["layout"]["gpus_per_node"] == 4
    assert Expectation().as_record()["predicted"] is None


def test_nodes_by_the_launcher_s_word() -> None:
    assert nodes_of(8, {"LOCAL_WORLD_SIZE": "4"}) == (2, 4)
    assert nodes_of(8, {}) == (1, 8)
    assert nodes_of(6, {"LOCAL_WORLD_SIZE": "4"}) == (1, 6)
