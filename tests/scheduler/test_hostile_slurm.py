"""A Slurm that says too much, or says control characters."""

import sys

import pytest

from hpctrain.clusters import discover
from hpctrain.clusters import live as live_cluster
from hpctrain.clusters.merge import merge
from hpctrain.util import process


def test_control_characters_of_slurm_reach_nobody() -> None:
    texts = {
        "config": "ClusterName             = evil\x1b[31m\x07\n",
        "nodes": (
            live_cluster.SEPARATOR.join(
                (
                    "evil",
                    "gp\x1b]0;u\x07*",
                    "up",
                    "1:00:00",
                    "2",
                    "8",
                    "1000",
                    "1",
                    "gpu:a\x1b100:4",
                    "f\u202e",
                )
            )
            + "\n"
        ),
        "partitions": "PartitionName=gp\x1b]0;u\x07 Default=YES State=UP\x9b QoS=a\x08b\n",
        "users": "ada|acc\x1b|evil[31m|acc\x1b||nor\x7fmal||\n",
        "qos": "nor\x7fmal||||Flag\x1b\n",
    }
    live = discover.from_texts(texts)
    assert live.cluster_name == "evil[31m"
    assert [each.name for each in live.partitions or ()] == ["gp]0;u"]
    assert repr(live).isprintable()
    assert "\\x" not in repr(live)
    cluster = merge(None, live)
    assert "\\x" not in repr(cluster.profile)


def test_one_long_word_is_read_in_one_go() -> None:
    # Each of these took the square of its length: minutes.
    assert live_cluster.parse_partitions("x" * 300_000) == ()
    assert live_cluster.parse_partitions(f"PartitionName=a {'x' * 300_000} State=UP")[0].up
    assert live_cluster.gpus_in("," * 300_000) == ()
    assert live_cluster.tres("cpu=" + "9" * 5000) == {}
    assert live_cluster.gpus_in("gpu:a100:" + "9" * 5000) == ()
    assert live_cluster.parse_config("SLURM_VERSION = " + "9" * 5000 + ".1\n").version is None


def test_a_program_that_closes_its_output_is_waited_for_and_killed() -> None:
    program = "import os, time; os.close(1); os.close(2); time.sleep(600)"
    with pytest.raises(process.NoAnswerError):
        process.run([sys.executable, "-c", program], timeout=0.5)
