"""Archives that are damaged, cut off, or made by somebody who means ill: nothing of them is seen, and nothing lies elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_maker import fill, make_run, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.errors import HpctrainError
from hpctrain.runs import archive, unpack

HEAD, DIGESTS = "hpctrain-archive.json", "hpctrain-digests.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return an archive of a small run."""
    root = tmp_path_factory.mktemp("whole")
    fill(root / "runs/sft-1", {"run.json": b"{}", "a/b": b"some content\n", "weights": bytes(range(256)) * 8})
    archive.export_runs([root / "runs/sft-1"], root / "out.tar")
    return (root / "out.tar").read_bytes()


def _take(data: bytes) -> dict[str, bytes] | None:
    """Import an archive into an empty place; return what arrived, or None where it was refused, and nothing was there then."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "in.tar").write_bytes(data)
        (root / "place/runs").mkdir(parents=True)
        refused = None
        try:
            unpack.import_runs(root / "in.tar", root / "place/runs")
        except HpctrainError as error:
            refused = error.render()
        arrived = tree(root / "place/runs")
        assert sorted(path.name for path in (root, root / "place") for path in path.iterdir()) == ["in.tar", "place", "runs"]
        if refused is None:
            return arrived
        assert "fix: " in refused
        assert list((root / "place/runs").iterdir()) == []
        return None


def test_the_whole_one_is_taken(whole: bytes) -> None:
    arrived = _take(whole)
    assert arrived is not None
    assert arrived["sft-1/a/b"] == b"some content\n"


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_cut_off_anywhere_it_is_refused(whole: bytes, data: st.DataObject) -> None:
    # The last 512 bytes are the second of two empty blocks at the end, which nobody needs.
    kept = data.draw(st.integers(0, len(whole) - 1024))
    assert _take(whole[:kept]) is None
    packed = gzip.compress(whole, mtime=0)
    # 8 bytes of checksum and length follow the data, and a few bytes of it are empty blocks.
    assert _take(packed[: data.draw(st.integers(0, len(packed) - 40))]) is None


@given(data=st.data())
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_a_flipped_bit_changes_no_content(whole: bytes, data: st.DataObject) -> None:
    expected = _take(whole)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    assert _take(bytes(flipped)) in (None, expected)


@given(data=st.binary(max_size=3000))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_refused(data: bytes) -> None:
    assert _take(data) is None
    assert _take(gzip.compress(data)) is None


def _archive(
    files: dict[str, bytes],
    *,
    runs: tuple[str, ...] = ("sft-1",),
    head: Callable[[dict[str, object]], object] = lambda value: None,
    digests: Callable[[dict[str, object]], object] = lambda value: None,
    members: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object] = lambda value: None,
) -> bytes:
    """Return an archive such as hpctrain writes it, made with Python's tarfile, and changed."""
    first: dict[str, object] = {
        "schema": 1,
        "kind": "runs",
        "created": 1,
        "runs": list(runs),
        "files": [[name, len(data)] for name, data in files.items()],
    }
    last: dict[str, object] = {"schema": 1, "files": [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()]}
    head(first)
    digests(last)
    listed = [_member(HEAD, json.dumps(first).encode()), *(_member(name, data) for name, data in files.items())]
    listed.append(_member(DIGESTS, json.dumps(last).encode()))
    members(listed)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in listed:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def test_what_the_tests_make_is_taken_when_nothing_is_changed() -> None:
    assert _take(_archive({"sft-1/a": b"1", "sft-1/run.json": b"{}"})) == {"sft-1/a": b"1", "sft-1/run.json": b"{}"}


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "sft-1/../evil", "sft-1/../../evil", "/tmp/evil", "sft-1//evil", "sft-1/./evil", "sft-1", "sft-1/", "other/evil", "evil",
        "", "sft-1/a\0b", ".importing-x/evil", "sft-1/..", "..", "sft-1/\ud800",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere(name: str) -> None:
    def listed(value: dict[str, object]) -> None:
        value["files"] = [[name, 1]]

    def sums(value: dict[str, object]) -> None:
        value["files"] = [[name, 1, hashlib.sha256(b"1").hexdigest()]]

    def stored(value: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        value[1] = _member(name.replace("\ud800", "?"), b"1")

    assert _take(_archive({"sft-1/a": b"1"}, head=listed, digests=sums, members=stored)) is None


@pytest.mark.parametrize("run", ["..", ".", "", "a/b", "/tmp", ".hidden", "-rf", "x" * 200])
def test_run_ids_that_lead_elsewhere(run: str) -> None:
    assert _take(_archive({f"{run}/a": b"1"}, runs=(run,))) is None


def test_a_run_named_twice_and_no_run() -> None:
    assert _take(_archive({"sft-1/a": b"1"}, runs=("sft-1", "sft-1"))) is None
    assert _take(_archive({}, runs=())) is None


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"S", b"L", b"g"]
)
def test_whatever_is_no_plain_file(kind: bytes) -> None:
    def put(value: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        value.insert(1, _member("sft-1/a", type=kind, linkname="/etc/passwd"))

    def instead(value: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        value[1] = _member("sft-1/a", type=kind, linkname="/etc/passwd")

    assert _take(_archive({"sft-1/a": b""}, members=put)) is None
    assert _take(_archive({"sft-1/a": b""}, members=instead)) is None


def test_a_link_first_and_then_a_file_through_it() -> None:
    with tempfile.TemporaryDirectory() as target:

        def put(value: list[tuple[tarfile.TarInfo, bytes]]) -> None:
            value.insert(1, _member("sft-1/d", type=tarfile.SYMTYPE, linkname=target))

        assert _take(_archive({"sft-1/d/evil": b"1"}, members=put)) is None
        assert list(Path(target).iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda listed: listed.append(listed[1]),  # behind the last
        lambda listed: listed.insert(1, listed[1]),  # twice
        lambda listed: listed.insert(1, _member("sft-1/more", b"1")),  # not announced
        lambda listed: listed.pop(1),  # announced and not there
        lambda listed: listed.pop(0),  # no head
        lambda listed: listed.pop(),  # no digests
        lambda listed: listed.reverse(),
        lambda listed: listed.__setitem__(1, _member("sft-1/a", b"12")),  # larger than said
        lambda listed: listed.__setitem__(1, _member("sft-1/a", b"")),
        lambda listed: listed.__setitem__(1, _member("sft-1/a", b"2")),  # another content
        lambda listed: listed.__setitem__(1, _member(HEAD, b"1")),
    ],
)
def test_members_that_do_not_fit(change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]) -> None:
    assert _take(_archive({"sft-1/a": b"1"}, members=change)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2}, {"files": None}, {"files": [["sft-1/a", 1], ["sft-1/a", 1]]}, {"files": [["sft-1/a"]]}, {"files": [["sft-1/a", -1]]},
        {"files": [["sft-1/a", "x"]]}, {"files": {"sft-1/a": 1}}, {"files": [["sft-1/a", 1e400]]},
        {"runs": None}, {"runs": 3}, {"runs": "s"},
        {"kind": "else"}, {"created": None}, {"files": [["sft-1/a", 1], ["sft-1/a/b", 1]]}, {"files": [["sft-1/a", 1], ["sft-1/b", 1]]},
    ],
)  # fmt: skip
def test_heads_that_are_not_sound(change: dict[str, object]) -> None:
    assert _take(_archive({"sft-1/a": b"1"}, head=lambda value: value.update(change))) is None


@pytest.mark.parametrize(
    "files", [None, [], [["sft-1/a", 1, "0" * 64]], [["sft-1/a", 2, hashlib.sha256(b"1").hexdigest()]], [["sft-1/a"]], 7]
)
def test_digests_that_are_not_sound(files: object) -> None:
    assert _take(_archive({"sft-1/a": b"1"}, digests=lambda value: value.update(files=files))) is None


def test_a_file_larger_than_the_head_says_is_not_even_unpacked(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    told: list[int] = []

    def listed(value: dict[str, object]) -> None:
        value["files"] = [["sft-1/a", 1]]

    def sums(value: dict[str, object]) -> None:
        value["files"] = [["sft-1/a", 1, hashlib.sha256(data).hexdigest()]]

    (tmp_path / "in.tar").write_bytes(_archive({"sft-1/a": data}, head=listed, digests=sums))
    with pytest.raises(HpctrainError, match="has 3145728 bytes, and its list says 1"):
        unpack.import_runs(tmp_path / "in.tar", tmp_path / "runs", progress=told.append)
    assert told == []
    assert list(tmp_path.glob("runs/*")) == []


def test_a_file_where_a_directory_is_needed() -> None:
    assert _take(_archive({"sft-1/a": b"1", "sft-1/a/b": b"2"})) is None
    assert _take(_archive({"sft-1/a/b": b"2", "sft-1/a": b"1"})) is None


def test_bits_that_give_rights_stay_behind() -> None:
    with tempfile.TemporaryDirectory() as name:

        def put(value: list[tuple[tarfile.TarInfo, bytes]]) -> None:
            value[1] = _member("sft-1/a", b"1", mode=0o6777, uid=12345, gid=12345, mtime=1 << 40)

        (Path(name) / "in.tar").write_bytes(_archive({"sft-1/a": b"1"}, members=put))
        unpack.import_runs(Path(name) / "in.tar", Path(name) / "runs")
        status = (Path(name) / "runs/sft-1/a").stat()
        assert (status.st_mode & 0o7777, status.st_uid) == (0o755, os.getuid())


@pytest.mark.slow
def test_small_archives_that_grow_without_end_use_no_memory(tmp_path: Path) -> None:
    """A long extended header, a long head, and a file longer than said, each of a gigabyte of zeros that compresses to a megabyte."""
    for number, info in enumerate((_member("x", type=b"x"), _member(HEAD), _member("sft-1/a"))):
        info[0].size = 1 << 30
        with gzip.open(tmp_path / f"{number}.tar", "wb", compresslevel=1) as out:
            if number == 2:
                out.write(_archive({"sft-1/a": b"1"})[: -2 * 10240])
            out.write(info[0].tobuf(tarfile.GNU_FORMAT))
            for _ in range(1 << 6):
                out.write(bytes(1 << 24))
        program = (
            "import resource, sys; from pathlib import Path; from hpctrain.runs import unpack\n"
            "resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))\n"
            "from hpctrain.errors import HpctrainError\n"
            "try: unpack.import_runs(Path(sys.argv[1]), Path(sys.argv[2]))\n"
            "except HpctrainError as error: print('refused')"
        )
        words = [sys.executable, "-c", program, str(tmp_path / f"{number}.tar"), str(tmp_path / "runs")]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("refused\n", "")
    assert not list(tmp_path.glob("runs/*"))


def test_a_run_whose_checkpoints_lie_is_found_by_verify_there(tmp_path: Path) -> None:
    """An archive can be sound and bring a checkpoint that was damaged before: `--incomplete` says so, and nothing hides it."""
    run = make_run(tmp_path / "runs")
    data = run / "checkpoints/checkpoint-10/optimizer.pt"
    data.write_bytes(b"M" + data.read_bytes()[1:])
    archive.export_runs([run], tmp_path / "out.tar", incomplete=True)
    unpack.import_runs(tmp_path / "out.tar", tmp_path / "other")
    from hpctrain.runs import checkpoints

    wrong = checkpoints.problems(tmp_path / "other/sft-1/checkpoints/checkpoint-10", digests=True)
    assert wrong == ("optimizer.pt has changed since it was saved (SHA-256)",)
