"""The layouts that fit, in what order, and what would fit where none does."""

from dataclasses import replace

import pytest
from fit_models import shape

from hpctrain.fit import gpus, memory
from hpctrain.fit.correction import Correction, Factor, kind
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.layouts import Row, Site, Work, candidates, choice, differences, is_tight, judged, nearest, remedies, table

LLAMA, QWEN = shape("llama-3-8b"), shape("qwen3-0.6b")
H100 = gpus.find("h100")
NODE = Site(gpu_bytes=H100.memory, gpu=H100, gpus_per_node=4, nodes_max=64)
ASKED = Layout(gpus_per_node=4)
WORK = Work(tokens=10**9)


def batch(layout: Layout) -> int:
    return layout.micro_batch * layout.accumulation * layout.processes


def rows(asked: Layout = ASKED, site: Site = NODE, **changes: bool) -> tuple[Row, ...]:
    return table(QWEN, asked, site, WORK, **changes)


def test_every_row_fits_keeps_the_global_batch_and_they_are_fastest_first() -> None:
    found = rows(every=True)
    assert len(found) > 20
    assert {batch(row.layout) for row in found} == {32}
    assert all(row.fits and row.total <= NODE.gpu_bytes for row in found)
    speeds = [row.tokens_per_s for row in found]
    assert speeds == sorted(speeds, reverse=True)
    assert len({row.layout for row in found}) == len(found)
    assert any(row.layout == ASKED for row in found)
    for dimension in ("nodes", "micro_batch", "sharding", "checkpointing"):
        assert len({getattr(row.layout, dimension) for row in found}) > 1, dimension


def test_a_batch_that_does_not_divide_stays_what_it_is() -> None:
    found = rows(replace(ASKED, micro_batch=6), every=True)
    assert {batch(row.layout) for row in found} == {24}
    assert {row.layout.micro_batch for row in found if row.layout.processes == 4} == {1, 2, 6}


def test_what_is_shown_is_few_and_has_the_fastest_and_the_asked() -> None:
    found, every = rows(), rows(every=True)
    assert len(found) <= 12 < len(every)
    assert found[0].tokens_per_s >= every[0].tokens_per_s / 1.02
    assert any(row.layout == ASKED for row in found)
    assert not any(row.layout.checkpointing == "full" for row in found)  # nothing is computed again that need not be


def test_a_lora_stays_a_lora_and_the_rest_stays_as_asked() -> None:
    asked = replace(ASKED, lora=Lora(rank=8, targets=("q_proj",)), weights="bfloat16", attention="flash", length=300)
    for layout in candidates(asked, NODE):
        same = replace(
            layout, nodes=1, gpus_per_node=4, micro_batch=8, accumulation=1, sharding="ddp", checkpointing="off"
        )  # fmt: skip
        assert same == asked


def test_deepspeed_is_for_who_asked_for_it() -> None:
    assert {each.sharding for each in candidates(ASKED, NODE)} == {"ddp", "fsdp"}
    assert {each.sharding for each in candidates(replace(ASKED, sharding="zero2"), NODE)} == {"ddp", "zero2", "zero3"}
    alone = [each for each in candidates(Layout(), NODE) if each.processes == 1]
    assert {each.sharding for each in alone} == {"ddp"}
    four = replace(ASKED, quantization="4bit", lora=Lora(rank=8, targets=("q_proj",)))
    assert {each.sharding for each in candidates(four, NODE)} == {"ddp"}


def test_machines_are_parts_of_a_node_then_whole_ones() -> None:
    def machines(asked: Layout, site: Site) -> set[tuple[int, int]]:
        return {(each.nodes, each.gpus_per_node) for each in candidates(replace(asked, accumulation=64), site)}

    one = Layout()
    assert machines(one, NODE) == {(1, 1), (1, 2), (1, 4), (2, 4), (4, 4)}
    assert machines(one, replace(NODE, whole_nodes=True)) == {(1, 1), (1, 4), (2, 4), (4, 4)}
    assert machines(one, replace(NODE, nodes_max=1)) == {(1, 1), (1, 2), (1, 4)}
    assert machines(replace(one, nodes=2, gpus_per_node=4), NODE) == {(2, 4), (4, 4), (8, 4)}
    assert machines(one, replace(NODE, gpus_per_node=None)) == {(1, 1), (1, 2), (1, 4), (1, 8)}


def test_time_and_hours_come_from_the_tokens() -> None:
    row = judged(QWEN, ASKED, replace(NODE, whole_nodes=True, gpus_per_node=8), WORK)
    assert row.seconds == pytest.approx(WORK.tokens / row.tokens_per_s)
    assert row.gpu_hours == pytest.approx(row.seconds / 3600 * 8)  # all eight are paid
    assert row.node_hours == pytest.approx(row.seconds / 3600)
    share = judged(QWEN, ASKED, replace(NODE, gpus_per_node=8), WORK)
    assert share.gpu_hours == pytest.approx(share.seconds / 3600 * 4)
    unknown = judged(QWEN, ASKED, replace(NODE, gpu=None), WORK)
    assert (unknown.tokens_per_s, unknown.seconds, unknown.gpu_hours, unknown.node_hours) == (None, None, None, None)


def test_without_a_known_gpu_the_fewest_come_first() -> None:
    found = rows(site=replace(NODE, gpu=None))
    assert [row.layout.processes for row in found] == sorted(row.layout.processes for row in found)


def test_the_choice_takes_no_more_gpus_than_asked() -> None:
    found = rows()
    chosen = choice(ASKED, found, NODE)
    assert chosen.layout.processes == 4
    assert found[0].layout.processes > 4
    assert all(row.tokens_per_s <= chosen.tokens_per_s for row in found if row.layout.processes <= 4)
    assert choice(ASKED, (), NODE) is None


def test_a_choice_with_some_to_spare_goes_before_a_tight_one() -> None:
    found = rows()
    first = next(row for row in found if row.layout.processes <= 4)
    site = replace(NODE, gpu_bytes=first.total + 1)
    assert is_tight(first, site)
    assert not is_tight(first, replace(NODE, gpu_bytes=2 * first.total))
    assert choice(ASKED, (first,), site) is first
    other = judged(QWEN, replace(first.layout, checkpointing="full"), site, WORK)
    assert other.tokens_per_s < first.tokens_per_s
    assert choice(ASKED, (first, other), site) is other


def test_what_is_nearest_changes_least() -> None:
    small = replace(NODE, gpu_bytes=memory.gpu_memory(QWEN, ASKED).total - 1)
    found = table(QWEN, ASKED, small, WORK)
    near = nearest(ASKED, found)
    assert near.layout.processes == 4
    assert len(differences(ASKED, near.layout)) == 1
    assert differences(ASKED, ASKED) == ()
    other = replace(ASKED, nodes=2, sharding="fsdp", checkpointing="full", micro_batch=4)
    changes = ["2 x 4 GPUs in place of 1 x 4", "fsdp in place of ddp", "activation checkpointing"]
    assert list(differences(ASKED, other)) == [*changes, "a micro batch of 4 in place of 8 (accumulation 1)"]


def test_where_nothing_fits_it_is_said_what_would() -> None:
    site = replace(NODE, gpu_bytes=14 * 1024**3, nodes_max=2)
    asked = replace(ASKED, length=2048)
    assert table(LLAMA, asked, site, WORK) == ()
    found = {remedy.what.split()[0]: remedy for remedy in remedies(LLAMA, asked, site)}
    assert {"LoRA", "QLoRA:"} <= set(found)
    nodes = next(remedy for what, remedy in found.items() if what.isdecimal())
    assert "a job here has 2 at most" in nodes.what
    assert not nodes.fits
    assert nodes.total <= site.gpu_bytes
    assert found["LoRA"].total == judged(
        LLAMA,
        replace(
            asked, micro_batch=1, checkpointing="full", sharding="fsdp", weights="bfloat16",
            lora=Lora(rank=16, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
        ), site, Work(),
    ).total  # fmt: skip
    assert found["LoRA"].fits
    assert "use_peft: true" in found["LoRA"].fix


def test_shorter_rows_are_a_remedy_where_they_are() -> None:
    site = Site(gpu_bytes=judged(QWEN, Layout(micro_batch=1, length=4096, checkpointing="full"), NODE, WORK).total + 1)
    found = [remedy for remedy in remedies(QWEN, Layout(length=32768), site) if remedy.what.startswith("rows of")]
    assert [remedy.fix for remedy in found] == ["max_length: 4096"]


def test_ones_own_runs_correct_memory_and_speed() -> None:
    learnt = Correction({kind(ASKED): Factor(1.5, 2)}, {kind(ASKED): Factor(0.5, 2)})
    plain, corrected = judged(QWEN, ASKED, NODE, WORK), judged(QWEN, ASKED, NODE, WORK, learnt)
    context = plain.memory.context
    assert corrected.total - context == pytest.approx(1.5 * (plain.total - context), abs=1)
    assert corrected.tokens_per_s == pytest.approx(plain.tokens_per_s / 2)
    assert corrected.seconds == pytest.approx(plain.seconds * 2)
    full = replace(NODE, gpu_bytes=plain.total)
    assert judged(QWEN, ASKED, full, WORK).fits
    assert not judged(QWEN, ASKED, full, WORK, learnt).fits
