"""A Slurm that says too much, or says control characters."""

from __future__ import annotations

import sys

import pytest

from hpctrain.cli import init_found
from hpctrain.clusters import slurm_text
from hpctrain.clusters.merge import merge
from hpctrain.errors import HpctrainError
from hpctrain.scheduler import discover, process


def test_control_characters_of_slurm_reach_nobody() -> None:
    texts = {
        "config": "ClusterName             = evil\x1b[31m\x07\n",
        "nodes": slurm_text.SEPARATOR.join(
            (
                "evil",
                "gp\x1b]0;u\x07*",
                "up",
                "1:00:00",
                "30:00",
                "1-2",
                "NO",
                "2",
                "0/2/0/2",
                "8",
                "1000",
                "1",
                "gpu:a\x1b100:4",
                "f\u202e",
            )
        )
        + "\n",
        "partitions": "PartitionName=gp\x1b]0;u\x07 Default=YES State=UP\x9b QoS=a\x08b\n",
        "users": "ada|acc\x1b|evil[31m|acc\x1b||nor\x7fmal|||\n",
        "qos": "nor\x7fmal|||||||Flag\x1b\n",
    }
    live = discover.from_texts(texts)
    assert live.cluster_name == "evil[31m"
    assert [each.name for each in live.partitions or ()] == ["gp]0;u"]
    assert repr(live).isprintable()
    assert "\\x" not in repr(live)
    cluster = merge(None, live)
    assert "\\x" not in repr(cluster.profile)
    init_found.gather(None, live, (), {})


def test_one_long_word_is_read_in_one_go() -> None:
    # Each of these took the square of its length: minutes.
    assert slurm_text.parse_partitions("x" * 300_000) == ()
    assert slurm_text.parse_partitions(f"PartitionName=a {'x' * 300_000} State=UP")[0].up
    assert slurm_text.gpus_in("," * 300_000) == ()
    assert slurm_text.tres("cpu=" + "9" * 5000) == {}
    assert slurm_text.gpus_in("gpu:a100:" + "9" * 5000) == ()
    assert slurm_text.parse_config("SLURM_VERSION = " + "9" * 5000 + ".1\n").version is None


def test_of_what_a_program_says_only_so_much_is_kept() -> None:
    program = "import sys; [sys.stdout.write('x' * 99_999 + '\\n') for _ in range(400)]; sys.stderr.write('e'); sys.exit(3)"
    done = process.run([sys.executable, "-c", program], timeout=60)
    assert done.returncode == 3
    assert 0 < len(done.stdout) <= process.KEPT_BYTES
    assert done.stdout.endswith("x\n")
    assert done.cut
    assert done.stderr.splitlines()[-1].endswith("only the first 16 MB of its stdout were read")
    short = process.run([sys.executable, "-c", "print('a'); import sys; print('b', file=sys.stderr)"], timeout=60)
    assert (short.stdout, short.stderr, short.cut) == ("a\n", "b\n", False)


def test_a_program_that_closes_its_output_is_waited_for_and_killed() -> None:
    program = "import os, time; os.close(1); os.close(2); time.sleep(600)"
    with pytest.raises(process.NoAnswerError):
        process.run([sys.executable, "-c", program], timeout=0.5)


def test_the_words_of_a_query_that_fails_are_short_and_printable(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sinfo", "scontrol", "sacctmgr"):
        path = tmp_path / name  # type: ignore[operator]
        path.write_text(f"#!{sys.executable}\nimport sys; sys.exit('\\x1b[31m' + 'no ' * 5000)\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    live = discover.discover(timeout=60)
    assert live.silent
    for sentence in live.silent:
        assert len(sentence) < 400
        assert sentence.isprintable()
        assert "..." in sentence


def test_an_error_shows_control_characters_instead_of_sending_them() -> None:
    error = HpctrainError("no \x1b[31mfile 'a\rb'", details=("  at \x07 x\ty", "é 東\udcff"), fix="rm \x9b2J\u202e")
    assert error.render() == "error: no \\x1b[31mfile 'a\\x0db'\n  at \\x07 x\ty\né 東\udcff\nfix: rm \\x9b2J\\u202e"
