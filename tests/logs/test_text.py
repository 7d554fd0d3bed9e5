"""What a line says once cleaned: decoded, without escape sequences and debris of progress bars, and
with its label apart.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.logs import text

#: What logs are made of, so that chance meets it.
PIECES = st.sampled_from(
    [
        "\x1b[31m",
        "\x1b[0m",
        "\x1b]8;;http://x\x07",
        "\x1b]0;title\x1b\\",
        "\x1b[2K",
        "\x1b[1A",
        "\x1b",
        "\x9b",
        "\r",
        "\r\n",
        "\n",
        "\0",
        "\b",
        "\t",
        " 37%|███▋      | 37/100 [00:10<00:20,  3.10it/s]",
        "{'loss': 2.3}",
        "50%|",
        "| 3/4 [00:01<00:02, 1it/s]",
        "[rank3]:",
        "3: ",
        "x",
        " ",
        "━━━━━╸━━ 1.2/3.4 MB",
        "12it [00:01, 100.00it/s]",
        "\u202e",
        "ß",
        "✓",
        "\ud800",
        "a" * 900,
        "1",
        "[",
        "]",
        "%",
        "|",
        "=>",
    ]
)
LINES = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"plain\n", "plain"),
        (b"windows\r\n", "windows"),
        (b"\x1b[1;31mred\x1b[0m and \x1b[38;5;12mblue\x1b[m", "red and blue"),
        (b"\x1b]8;;https://x.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b]0;title\x07text", "text"),
        ("Größe ✓".encode(), "Größe ✓"),
        ("Größe".encode("latin-1"), "Gr\ufffd\ufffde"),
        (b"\0\0\0after a hole", "after a hole"),
        (b"tab\tstays, bell\x07 goes", "tab\tstays, bell goes"),
        ("left\u202eright".encode(), "leftright"),
        (b"", ""),
    ],
)
def test_what_only_a_terminal_understands_goes(raw: bytes, said: str) -> None:
    assert text.clean(raw) == said


BAR = " 37%|███▋      | 37/100 [00:10<00:20,  3.10it/s]"
END = "100%|██████████| 100/100 [00:30<00:00,  3.30it/s]"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (f"\r{BAR}\r{END}", END),
        (f"{BAR}{END}", END),  # two bars in one line, as two processes write them
        (BAR + "{'loss': 2.31, 'epoch': 0.1}", "{'loss': 2.31, 'epoch': 0.1}"),
        (f"\r{BAR}\rRuntimeError: boom\r{END}", "RuntimeError: boom"),
        (
            (
                "Loading checkpoint shards:  50%|█████     | 1/2 [00:00<00:00]\rLoading checkpoint"
                " shards: 100%|█| 2/2 [00:01<00:00]"
            ),
            "Loading checkpoint shards: 100%|█| 2/2 [00:01<00:00]",
        ),
        (f"3: \r{BAR}\r{END}", f"3: {END}"),
        ("step 1\rstep 2\rstep 3", "step 3"),
        ("one thing\ranother", "one thing another"),
        ("\x1b[2K   ━━━━━━━━ 1.2/3.4 MB\x1b[2K   ━━━━━━━━ 3.4/3.4 MB", "   ━━━━━━━━ 3.4/3.4 MB"),
    ],
)
def test_of_debris_the_last_state_stays_and_what_is_no_bar_is_kept(raw: str, said: str) -> None:
    assert text.clean(raw.encode()) == said


@pytest.mark.parametrize(
    "bar",
    [
        BAR,
        END,
        "  0%|          | 0/10 [00:00<?, ?it/s]",
        "Map (num_proc=8):  37%|###7      | 3700/10000 [00:01<00:02, 100.00 examples/s]",
        "model.safetensors:  37%|███▋      | 1.20G/3.20G [00:10<00:20, 100MB/s]",
        "Epoch 1: 12it [00:01, 100.00it/s]",
        "   ━━━━━━━━━━━━━╸━━━ 1.2/3.4 MB 10.2 MB/s eta 0:00:01",
        "Working... ━━━━━━╺━━━━━━━━  40% 0:00:05",
        " 37%|███",
        "1.2GiB / 3.4GiB [====>-------------] 37 % 100MiB/s 10s",
        "45% [=======>        ] 1,234,567   1.2MB/s  eta 5s",
    ],
)
def test_bars(bar: str) -> None:
    assert text.progress_bar(text.clean(bar))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss 37%",
        "CUDA out of memory: 37% | 12",
        "[train] step=10/1000 loss=8.2448",
        "100% sure",
        "{'loss': 2.3, 'epoch': 0.37}",
        "throughput 123 it/s",
        "[speed] step=10/100 tokens/s=100 mfu=37%",
        "RuntimeError: 50%|x",
        "| NVIDIA-SMI 550.54 | 37% |",
    ],
)
def test_no_bars(line: str) -> None:
    assert not text.progress_bar(text.clean(line))


@pytest.mark.slow
def test_a_line_of_ten_megabytes_is_cut_with_a_mark_and_keeps_both_ends() -> None:
    said = text.clean(b"begin " + b"\xc3\xa9" * 5_000_000 + b" end")
    assert said.startswith("begin é")
    assert said.endswith("é end")
    assert "characters left out" in said
    assert "\ufffd" not in said
    assert "Ã" not in said, "a character that the cut divides is no Latin-1"
    assert len(said) <= text.MOST
    bars = f"\r{BAR}" * 200_000 + "\nnot reached"
    assert text.clean(bars[: bars.index("\n")]) == BAR.rstrip()


@pytest.mark.slow
@settings(max_examples=400)
@given(LINES)
def test_cleaning_twice_is_cleaning_once(line: str) -> None:
    once = text.clean(line)
    assert text.clean(once) == once
    assert text.clean(once.encode()) == once
    assert len(once) <= max(len(line), text.MOST)
    assert not any(ord(character) < 32 and character != "\t" for character in once)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[default3]:text", text.Label("text", local_rank=3)),
        ("[rank3]: Traceback", text.Label("Traceback", 3)),
        ("[rank3]:[E1122 04:10:00.1 x.cpp:1] y", text.Label("[E1122 04:10:00.1 x.cpp:1] y", 3)),
        ("3: text", text.Label("text", 3)),
        (" 3: text", text.Label("text", 3)),
        ("12: 7: text", text.Label("7: text", 12)),
        ("3: ", text.Label("", 3)),
        ("0: [default1]:[rank5]: text", text.Label("text", 5, local_rank=1)),
        (
            "1: [default1]:text",
            text.Label("text", None, local_rank=1),
        ),  # a launcher's task is no rank
        ("[rank: 2] Seed set to 42", text.Label("Seed set to 42", 2)),
        ("[1,3]<stdout>:text", text.Label("text", 3)),
        ("[node01:3] text", text.Label("text", 3, "node01")),
        (
            "[node01:48213] *** Process received signal ***",
            text.Label("*** Process received signal ***", None, "node01"),
        ),
        ("node01: text", text.Label("text", None, "node01")),
        ("node01: [rank3]: text", text.Label("text", 3, "node01")),
        (
            "srun: error: n01: task 3: Killed",
            text.Label("srun: error: n01: task 3: Killed", 3, "n01"),
        ),
        (
            "slurmstepd-gpu012: error: Detected 1 oom_kill event",
            text.Label("slurmstepd-gpu012: error: Detected 1 oom_kill event", None, "gpu012"),
        ),
        (
            "slurmstepd-n-3.hpc: error: *** JOB 7",
            text.Label("slurmstepd-n-3.hpc: error: *** JOB 7", None, "n-3.hpc"),
        ),
        ("slurmstepd-gpu012: task 3: x", text.Label("slurmstepd-gpu012: task 3: x", 3, "gpu012")),
        ("3: slurmstepd-gpu012: error: x", text.Label("slurmstepd-gpu012: error: x", 3, "gpu012")),
        ("n01:12:13 [3] NCCL INFO x", text.Label("n01:12:13 [3] NCCL INFO x", None, "n01", 3)),
        ("[E P.cpp:474] [Rank 3] Watchdog", text.Label("[E P.cpp:474] [Rank 3] Watchdog", 3)),
        (
            "[memory] 2026-11-20T21:08:03.123Z step=10 event=step host=n01 rank=3/8 local=1 | x",
            text.Label(
                "[memory] 2026-11-20T21:08:03.123Z step=10 event=step host=n01 rank=3/8"
                " local=1 | x",
                3,
                "n01",
                1,
            ),
        ),
    ],
)
def test_labels(line: str, said: text.Label) -> None:
    assert text.label(line) == said


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-22 04:10:00,123] [INFO] [real_accelerator.py:239] x",
        "[INFO|trainer.py:123] 2026-11-22",
        "12:34:56 text",
        "python3: can't open",
        "fp16: true",
        "RuntimeError: x",
        "error: y",
        "[1] 2 3",
        "[W1122 04:10:00.1 socket.cpp:1] [c10d] x",
        "step100: x",
        "  File 'x.py', line 3",
        "cuda:0",
        "[train] begin: step=0/10",
        "3:text",
        "version2: x",
        "srun: error: task 0: Exited with exit code 1",  # Slurm without the node
    ],
)
def test_what_is_no_label(line: str) -> None:
    assert text.label(line) == text.Label(line)
