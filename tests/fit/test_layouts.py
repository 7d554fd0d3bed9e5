"""The layouts that fit, in what order, and what would fit where none does."""

from dataclasses import replace

import pytest

from hpctrain.fit import gpus
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.layouts import (
    LayoutEstimate,
    Site,
    Workload,
    candidates,
    choice,
    evaluate,
    is_tight,
    remedies,
    table,
)
from tests.fit.fit_models import shape

LLAMA, QWEN = shape("llama-3-8b"), shape("qwen3-0.6b")
H100 = gpus.find("h100")
NODE = Site(gpu_bytes=H100.memory, gpu=H100, gpus_per_node=4, nodes_max=64)
ASKED = Layout(gpus_per_node=4)
WORK = Workload(tokens=10**9)


def batch(layout: Layout) -> int:
    return layout.micro_batch * layout.accumulation * layout.processes


def rows(asked: Layout = ASKED, site: Site = NODE, **changes: bool) -> tuple[LayoutEstimate, ...]:
    return table(QWEN, asked, site, WORK, **changes)


@pytest.mark.slow
def test_every_row_fits_keeps_the_global_batch_and_they_are_fastest_first() -> None:
    found = rows(every=True)
    assert len(found) > 20
    assert {batch(row.layout) for row in found} == {32}
    odd = candidates(replace(ASKED, micro_batch=6), NODE)  # no power of two
    assert {batch(layout) for layout in odd} == {24}
    assert all(row.fits and row.total <= NODE.gpu_bytes for row in found)
    speeds = [row.tokens_per_s for row in found]
    assert speeds == sorted(speeds, reverse=True)
    assert len({row.layout for row in found}) == len(found)
    assert any(row.layout == ASKED for row in found)
    for dimension in ("nodes", "micro_batch", "sharding", "checkpointing"):
        assert len({getattr(row.layout, dimension) for row in found}) > 1, dimension


def test_what_is_shown_is_few_and_has_the_fastest_and_the_asked() -> None:
    found, every = rows(), rows(every=True)
    assert len(found) <= 12 < len(every)
    assert found[0].tokens_per_s >= every[0].tokens_per_s / 1.02
    assert any(row.layout == ASKED for row in found)
    assert not any(
        row.layout.checkpointing == "full" for row in found
    )  # nothing is computed again that need not be


def test_a_lora_stays_a_lora_and_the_rest_stays_as_asked() -> None:
    asked = replace(
        ASKED,
        lora=Lora(rank=8, targets=("q_proj",)),
        weights="bfloat16",
        attention="flash",
        length=300,
    )
    for layout in candidates(asked, NODE):
        same = replace(
            layout,
            nodes=1,
            gpus_per_node=4,
            micro_batch=8,
            accumulation=1,
            sharding="ddp",
            checkpointing="off",
        )
        assert same == asked


def test_deepspeed_is_for_who_asked_for_it() -> None:
    assert {each.sharding for each in candidates(ASKED, NODE)} == {"ddp", "fsdp"}
    assert {each.sharding for each in candidates(replace(ASKED, sharding="zero2"), NODE)} == {
        "ddp",
        "zero2",
        "zero3",
    }
    alone = [each for each in candidates(Layout(), NODE) if each.processes == 1]
    assert {each.sharding for each in alone} == {"ddp"}
    four = replace(ASKED, quantization="4bit", lora=Lora(rank=8, targets=("q_proj",)))
    assert {each.sharding for each in candidates(four, NODE)} == {"ddp"}


def test_machines_are_parts_of_a_node_then_whole_ones() -> None:
    def machines(asked: Layout, site: Site) -> set[tuple[int, int]]:
        return {
            (each.nodes, each.gpus_per_node)
            for each in candidates(replace(asked, accumulation=64), site)
        }

    one = Layout()
    assert machines(one, NODE) == {(1, 1), (1, 2), (1, 4), (2, 4), (4, 4)}
    assert machines(one, replace(NODE, whole_nodes=True)) == {(1, 1), (1, 4), (2, 4), (4, 4)}
    assert machines(one, replace(NODE, nodes_max=1)) == {(1, 1), (1, 2), (1, 4)}
    assert machines(replace(one, nodes=2, gpus_per_node=4), NODE) == {(2, 4), (4, 4), (8, 4)}
    assert machines(one, replace(NODE, gpus_per_node=None)) == {(1, 1), (1, 2), (1, 4), (1, 8)}


def test_the_choice_takes_no_more_gpus_than_asked() -> None:
    found = rows()
    chosen = choice(ASKED, found, NODE)
    assert chosen.layout.processes == 4
    assert found[0].layout.processes > 4
    assert all(
        row.tokens_per_s <= chosen.tokens_per_s for row in found if row.layout.processes <= 4
    )
    assert choice(ASKED, (), NODE) is None


def test_a_choice_with_some_to_spare_goes_before_a_tight_one() -> None:
    first = next(row for row in rows() if row.layout.processes <= 4)
    site = replace(NODE, gpu_bytes=first.total + 1)
    assert is_tight(first, site)
    assert not is_tight(first, replace(NODE, gpu_bytes=2 * first.total))
    assert choice(ASKED, (first,), site) is first
    other = evaluate(QWEN, replace(first.layout, checkpointing="full"), site, WORK)
    assert other.tokens_per_s < first.tokens_per_s
    assert choice(ASKED, (first, other), site) is other


@pytest.mark.slow
def test_where_nothing_fits_it_is_said_what_would() -> None:
    site = replace(NODE, gpu_bytes=14 * 1024**3, nodes_max=8)
    asked = replace(ASKED, micro_batch=1, length=2048)
    assert table(LLAMA, asked, site, WORK) == ()
    found = {remedy.what.split()[0]: remedy for remedy in remedies(LLAMA, asked, site)}
    assert {"LoRA", "QLoRA:"} <= set(found)
    assert all(remedy.total <= site.gpu_bytes for remedy in found.values())
    (nodes,) = (remedy for what, remedy in found.items() if what.isdecimal())
    assert nodes.fix == f"--nodes {nodes.what.split()[0]} --gpus 4 --sharding fsdp"
    beyond = remedies(LLAMA, asked, replace(site, nodes_max=1))
    assert not any(remedy.what[0].isdecimal() for remedy in beyond)
    linears = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    adapted = replace(
        asked,
        micro_batch=1,
        checkpointing="full",
        sharding="fsdp",
        weights="bfloat16",
        lora=Lora(rank=16, targets=linears),
    )
    assert found["LoRA"].total == evaluate(LLAMA, adapted, site, Workload()).total
    assert "use_peft: true" in found["LoRA"].fix
