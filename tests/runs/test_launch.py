"""The record of a launch: whole for whoever reads it, grown by each further submission, and never
written over.
"""

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import launch, layout
from hpctrain.runs.launch import Launch, Part
from hpctrain.slurm.ledger import Submission
from hpctrain.util import files

AT = 1_795_230_908.0


def created(runs: Path, tag: str = "sft-1", **changes: Any) -> Launch:
    given: dict[str, Any] = {
        "kind": "run",
        "name": "sft",
        "now": AT,
        "cwd": "/proj/sft",
        "version": "0.1",
        "argv": ["hpctrain", "submit", "--nodes", "2"],
    }
    return launch.create(runs, tag, **{**given, **changes})


def submission(token: str, **changes: Any) -> Submission:
    return Submission(
        **{
            "token": token,
            "argv": ("sbatch", "--parsable", "sft.sbatch"),
            "at": AT,
            "scheduler": "slurm",
            **changes,
        }
    )


def test_a_tag_says_what_and_when() -> None:
    tag = launch.new_tag("sft", AT, 0x97F3A)
    assert re.fullmatch(r"sft-\d{6}-\d{6}-7f3a", tag)
    assert time.strftime("%y%m%d-%H%M%S", time.localtime(AT)) in tag
    for name in ("x" * 300, "--", "a b/c", "é", ".hidden", ""):
        assert layout.NAME.match(launch.new_tag(name, AT, 1)), name
        assert layout.NAME.match(
            layout.run_id(launch.new_tag(name, AT, 1), stage="s" * 30, index=None)
        )


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    made = created(tmp_path)
    submission("b", job_id="7", at=AT + 1, array="0-9%2", offset=10, dependency="afterok:6").write(
        launch.submissions_dir(tmp_path, "sft-1")
    )
    submission("a", job_id="6", script="sft.sbatch", command=("hpctrain", "submit")).write(
        launch.submissions_dir(tmp_path, "sft-1")
    )
    read = launch.load(tmp_path, "sft-1")
    assert (read.tag, read.kind, read.name, read.created) == (
        "sft-1",
        "run",
        "sft",
        AT,
    )
    record = json.loads((read.path / "launch.json").read_text())
    assert (record["cwd"], record["hpctrain"], record["argv"]) == (
        "/proj/sft",
        "0.1",
        ["hpctrain", "submit", "--nodes", "2"],
    )
    assert read.path == made.path == tmp_path / ".launches" / "sft-1"
    assert read.submissions == (
        submission("a", job_id="6", script="sft.sbatch", command=("hpctrain", "submit")),
        submission("b", job_id="7", at=AT + 1, array="0-9%2", offset=10, dependency="afterok:6"),
    )
    assert launch.tags(tmp_path) == ["sft-1"]
    assert read.run_ids == ["sft-1"]


def test_the_parts_of_a_launch(tmp_path: Path) -> None:
    created(tmp_path)
    train = Part(
        script="train.sbatch", config="config.train.json", stage="train", links=3, at=AT + 1
    )
    evaluate = Part(
        script="evaluate.sbatch",
        array="0-3%2",
        offset=10,
        stage="evaluate",
        dependencies=(("train", "afterok"),),
        at=AT + 2,
    )
    for part in (evaluate, train, replace(train, links=4, at=AT + 9)):
        launch.add_part(tmp_path, "sft-1", part)
    read = launch.load(tmp_path, "sft-1")
    assert read.parts == (
        replace(train, links=4),
        evaluate,
    ), "the same script again keeps its place"
    assert (read.path / "parts" / "train.sbatch.json").is_file()
    for spoilt in (
        '{"links": "x", "dependencies": [["a"], 3, ["a", "afterok"]], "at": null}',
        "[]",
        "{",
    ):
        (read.path / "parts" / "train.sbatch.json").write_text(spoilt)
        assert launch.load(tmp_path, "sft-1") is not None
    with pytest.raises(HpctrainError, match="cannot be the name of a file"):
        launch.add_part(tmp_path, "sft-1", replace(train, script="../launch"))


def test_the_runs_of_each_kind(tmp_path: Path) -> None:
    sweep = created(tmp_path, "sweep", kind="sweep", points=3, table="points-ab.tsv")
    assert sweep.run_ids == [
        "sweep_0",
        "sweep_1",
        "sweep_2",
    ]
    staged = created(tmp_path, "staged", kind="stages", stages=["train", "evaluate"])
    assert staged.run_ids == [
        "staged_train",
        "staged_evaluate",
    ]
    assert launch.load(tmp_path, "staged") == staged


def test_a_known_tag_goes_on(tmp_path: Path) -> None:
    first = created(tmp_path)
    recorded = (first.path / "launch.json").read_text()
    submission("a", job_id="1").write(launch.submissions_dir(tmp_path, "sft-1"))
    again = created(tmp_path, now=AT + 99, argv=["hpctrain", "submit", "--run-id", "sft-1"])
    assert (again.created, (again.path / "launch.json").read_text()) == (first.created, recorded)
    assert [one.job_id for one in again.submissions] == ["1"]
    staged = created(tmp_path, "staged", kind="stages", stages=["train"])
    grown = created(tmp_path, "staged", kind="stages", stages=["train", "evaluate"])
    assert (staged.stages, grown.stages, grown.runs) == (
        ("train",),
        ("train", "evaluate"),
        ("staged_train", "staged_evaluate"),
    )


@pytest.mark.parametrize(
    ("tag", "changes", "words"),
    [
        (
            "one",
            {"kind": "sweep", "points": 2, "table": "t"},
            "one was launched as one run, and this is a sweep",
        ),
        (
            "many",
            {"kind": "sweep", "points": 3, "table": "points-b.tsv"},
            "many is a sweep over other points",
        ),
        ("../one", {}, "'../one' cannot be the name of a run"),
        ("x" * 119, {"kind": "stages", "stages": ["train"]}, "cannot be the name of a run"),
        ("y" * 117, {"kind": "sweep", "points": 1000, "table": "t"}, "cannot be the name of a run"),
    ],
)
def test_what_a_tag_refuses(tmp_path: Path, tag: str, changes: dict[str, Any], words: str) -> None:
    created(tmp_path, "one")
    created(tmp_path, "many", kind="sweep", points=2, table="points-a.tsv")
    with pytest.raises(UsageError) as caught:
        created(tmp_path, tag, **changes)
    assert words in caught.value.what
    assert "--run-id" in str(caught.value.hint)
    assert launch.tags(tmp_path) == ["many", "one"]


def test_scripts_and_configs_are_never_written_over(tmp_path: Path) -> None:
    created(tmp_path)
    text = "#!/bin/bash\r\necho \udcff\n"
    for name, content, kept in (
        ("sft.sbatch", text, "sft.sbatch"),
        ("sft.sbatch", "other\n", "sft.2.sbatch"),
        ("sft.sbatch", "third\n", "sft.3.sbatch"),
        ("sft.sbatch", "other\n", "sft.2.sbatch"),
        ("sft.sbatch", text, "sft.sbatch"),
        ("noend", "x", "noend"),
        ("noend", "y", "noend.2"),
    ):
        assert launch.add_script(tmp_path, "sft-1", name, content) == kept
    scripts = tmp_path / ".launches" / "sft-1" / "scripts"
    assert (scripts / "sft.sbatch").read_bytes() == text.encode("utf-8", "surrogateescape")
    assert sorted(path.name for path in scripts.iterdir()) == [
        "noend",
        "noend.2",
        "sft.2.sbatch",
        "sft.3.sbatch",
        "sft.sbatch",
    ]
    with pytest.raises(HpctrainError):
        launch.add_script(tmp_path, "sft-1", "../launch.json", "x")

    config = {"resources": {"nodes": 2}}
    assert (
        launch.add_config(tmp_path, "sft-1", config, {("resources", "nodes"): "config.yaml:3:3"})
        == "config.json"
    )
    assert (
        launch.add_config(tmp_path, "sft-1", config, {("resources", "nodes"): "--nodes"})
        == "config.2.json"
    )
    assert launch.add_config(tmp_path, "sft-1", config, {}, stage="train") == "config.train.json"
    kept = files.read_json(tmp_path / ".launches" / "sft-1" / "config.json")
    assert kept == {
        "schema": 1,
        "config": config,
        "origins": {"resources.nodes": "config.yaml:3:3"},
    }


def test_the_code_of_a_launch(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for digest in ("aa", "bb"):
        (runs / ".code" / digest).mkdir(parents=True)
        (runs / ".code" / digest / "train.py").write_text(digest)
    directory = created(runs).path
    launch.set_code(runs, "sft-1", {"digest": "aa", "commit": "c1"}, "+one\n")
    launch.set_code(runs, "sft-1", {"digest": "aa", "commit": "c1"}, "+one\n")
    assert (directory / "code" / "train.py").read_text() == "aa"
    launch.set_code(runs, "sft-1", {"digest": "bb", "commit": "c2"}, None)
    assert (directory / "code" / "train.py").read_text() == "bb"
    assert sorted(path.name for path in directory.iterdir()) == [
        "code",
        "code-aa.diff",
        "code-aa.json",
        "code.json",
        "launch.json",
    ]
    assert (directory / "code-aa.diff").read_text() == "+one\n"
    read = launch.load(runs, "sft-1")
    assert read.code == "bb"
    runs.rename(tmp_path / "moved")
    moved = tmp_path / "moved" / ".launches" / "sft-1"
    assert (moved / "code" / "train.py").read_text() == "bb"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"kind": "party"}',
        '{"kind": "run", "points": "x", "runs": 3, "created": "now"}',
    ],
)
def test_a_spoilt_record_is_no_traceback(tmp_path: Path, text: str) -> None:
    directory = created(tmp_path).path
    (directory / "submissions").mkdir()
    (directory / "submissions" / "x.json").write_text(text)
    assert launch.load(tmp_path, "sft-1") is not None
    (directory / "launch.json").write_text(text)
    read = launch.load(tmp_path, "sft-1")
    assert read is None or (read.points, read.runs, read.created) == (None, (), 0.0)
    assert launch.load(tmp_path, "../x") is None
    assert launch.load(tmp_path / "nowhere", "x") is None
    assert launch.tags(tmp_path / "nowhere") == []


def test_one_command_at_a_time_changes_a_launch(tmp_path: Path) -> None:
    """Who holds it keeps it however long it takes."""
    with launch.claim(tmp_path, "t"), launch.claim(tmp_path, "other"):
        os.utime(tmp_path / ".launches" / ".lock-t", (0, 0))
        with pytest.raises(HpctrainError, match="another command"), launch.claim(tmp_path, "t"):
            pass
    assert list((tmp_path / ".launches").iterdir()) == []
