"""The pieces of `hpctrain init` that touch nothing: how values and comments are written, and
answers from what was found.
"""

from hypothesis import given
from hypothesis import strategies as st

from hpctrain.clusters.live import LiveCluster, LiveNodes, LivePartition
from hpctrain.clusters.merge import merge
from hpctrain.jobs import proposal
from hpctrain.jobs.proposal import Answer, ConfigQuestion, Proposal
from hpctrain.util import yaml12


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_every_value_is_read_back(value: str) -> None:
    document = yaml12.load(f"a:\n  b: {proposal.scalar(value)}  # why\n", "config.yaml")
    assert document.data == {"a": {"b": value}}


@given(st.text(max_size=300), st.text(min_size=1, max_size=20))
def test_no_comment_becomes_a_key(why: str, value: str) -> None:
    line = proposal._line(f"key: {proposal.scalar(value)}", why)
    assert yaml12.load(line, "config.yaml").data == {"key": value}


def _nobody(question: ConfigQuestion) -> Answer:
    raise AssertionError(question.option)


def test_the_gpus_of_this_machine_count() -> None:
    answers = Proposal("strict", [], _nobody, local_gpus=3)
    answers.answer_all()
    assert answers.known["resources", "gpus_per_node"].value == "3"
    assert answers.missing == []


def test_slices_of_gpus_are_offered_last() -> None:
    slices = LiveNodes(count=9, gpus=(("a100_1g.5gb", 7), ("a100", 1)))
    live = LiveCluster(partitions=(LivePartition(name="mig", up=True, nodes=(slices,)),))
    answers = Proposal("best", [], _nobody, live=live, cluster=merge(None, live))
    answers.answer_all()
    assert answers.value("resources", "gpu_type") == "a100"
    assert answers.value("resources", "gpus_per_node") == "1"
    assert answers.taken == ["--gpu-type a100: most of the whole GPUs: sinfo -p mig"]
    assert all(
        proposal.is_slice(kind) for kind in ("a100_1g.5gb", "nvidia_h100_3g.40gb", "1g.10gb")
    )
    assert not any(proposal.is_slice(kind) for kind in ("a100", "gh200", "mi250"))
