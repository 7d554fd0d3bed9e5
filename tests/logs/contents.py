"""What logs are full of, kind by kind: lines of trainings that are well, and of trainings that are
not and go on. The same on each call.
"""

import random
from collections.abc import Callable, Iterator
from itertools import count

PACKAGES = "/opt/env/lib/python3.11/site-packages"
#: The end of one rank.
FAILURE = """Traceback (most recent call last):
  File "/home/ada/train.py", line 41, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is free. \
Including non-PyTorch memory, this process has 38.26 GiB memory in use. Of the allocated memory 36.30 GiB is allocated by PyTorch, and \
102.21 MiB is reserved by PyTorch but unallocated.
"""
RETRY = f"""Traceback (most recent call last):
  File "/home/ada/data.py", line 88, in fetch
    return self.session.get(url, timeout=5)
  File "{PACKAGES}/requests/sessions.py", line 602, in get
    return self.request("GET", url, **kwargs)
requests.exceptions.ConnectionError: HTTPConnectionPool(host='store', port=80): Max retries exceeded with url: /shard-%d (Caused by \
NewConnectionError('<urllib3.connection.HTTPConnection object>: Failed to establish a new connection: [Errno 111] Connection refused'))
"""
Draw = random.Random


def clock(i: int) -> str:
    return f"2026-11-20 21:{i // 60 % 60:02}:{i % 60:02}"


def transformers(i: int, draw: Draw, _: int) -> str:
    return (
        f"{{'loss': {draw.random() * 3:.4f}, 'grad_norm': {draw.random():.4f}, 'learning_rate':"
        f" {draw.random() / 1e4:.6e}, 'epoch': {i / 1000:.2f}}}\n"
    )


def tqdm(i: int, _: Draw, __: int) -> str:
    return (
        f"\r {i % 100:2}%|####      | {i}/100000 [00:{i % 60:02}<1:23:45,  1.{i % 97:02}it/s]"
        + ("\n" if i % 5000 == 0 else "")
    )


def retries(i: int, _: Draw, __: int) -> str:
    return (
        f"{clock(i)},{i % 1000:03} WARNING data.py:88 try {i % 5} failed, next one in 5 s\n"
        + RETRY % i
    )


def nan(i: int, draw: Draw, _: int) -> str:
    return (
        f"{{'loss': nan, 'grad_norm': nan, 'learning_rate': {draw.random() / 1e4:.6e}, 'epoch':"
        f" {i / 1000:.2f}}}\n"
    )


def bad_samples(i: int, _: Draw, __: int) -> str:
    return (
        f"{clock(i)},{i % 1000:03} - dataset - ERROR - sample {i} of shard {i % 77}: ValueError:"
        f" image is truncated ({i % 50} bytes)\n"
    )


def words(_: int, draw: Draw, __: int) -> str:
    return draw.choice(
        [
            "error\n",
            "failed\n",
            "timeout\n",
            "Error: something failed\n",
            "connection timeout, failed\n",
        ]
    )


def one_line(_: int, draw: Draw, __: int) -> str:
    return ", ".join(f"{draw.random():.6f}" for _ in range(1000)) + ", "


def tracebacks(i: int, draw: Draw, _: int) -> str:
    return (
        f'Traceback (most recent call last):\n  File "a.py", line {i}, in load\n    read({i})\n'
        f"ValueError: sample {draw.getrandbits(64):x} is not readable\n"
    )


KINDS: dict[str, Callable[[int, Draw, int], str]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        transformers,
        tqdm,
        one_line,
        nan,
        retries,
        bad_samples,
        words,
        tracebacks,
    )
}


def content(kind: str, size: int, rank: int = 0) -> bytes:
    """Return so many bytes of a kind, and the rest of their last line."""
    draw = Draw(rank)
    made: Iterator[str] = (KINDS[kind](number, draw, rank) for number in count(1))
    parts: list[bytes] = []
    while size > 0:
        parts.append(next(made).encode())
        size -= len(parts[-1])
    return b"".join(parts) + (b"\n" if not parts[-1].endswith(b"\n") else b"")
