"""The layers of a job config: who wins, and what is said of what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import layers
from hpctrain.config.fields import FIELDS
from hpctrain.config.spec import JobSpec
from hpctrain.config.to_spec import to_spec
from hpctrain.errors import UsageError
from hpctrain.jobs import directives

ACCOUNT, NODES = ("resources", "account"), ("resources", "nodes")


class Desk:
    """A directory with the files of a user, and what they type."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"HOME": str(directory / "home")}

    def write(self, text: str | bytes, name: str = "config.yaml") -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    def spec(
        self,
        options: dict[tuple[str, ...], str] | None = None,
        *sbatch: str,
        config: str | None = None,
    ) -> JobSpec:
        found = layers.gather(
            options=options or {},
            sbatch=sbatch,
            config=config,
            directory=self.directory,
            environment=self.environment,
        )
        return to_spec(layers.resolve(found).config, directory=str(self.directory))

    def refused(
        self,
        options: dict[tuple[str, ...], str] | None = None,
        *sbatch: str,
        config: str | None = None,
    ) -> list[str]:
        with pytest.raises(UsageError) as caught:
            self.spec(options, *sbatch, config=config)
        lines = caught.value.render().splitlines()
        assert lines[0].startswith("error: ")
        assert lines[-1].startswith(("fix: ", "hint: "))
        return lines


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


USER = "home/.config/hpctrain/config.yaml"


def test_who_wins(desk: Desk) -> None:
    assert desk.spec().account is None
    desk.write("resources: {account: user, partition: user, qos: user, reservation: user}", USER)
    assert desk.spec().account == "user"
    desk.write("resources: {account: project, partition: project, qos: project}")
    assert desk.spec().account == "project"
    desk.environment |= {"HPCTRAIN_ACCOUNT": "env", "HPCTRAIN_PARTITION": "env", "HPCTRAIN_QOS": ""}
    assert desk.spec().account == "env"
    spec = desk.spec({ACCOUNT: "option"})
    assert (spec.account, spec.partition, spec.qos, spec.reservation) == (
        "option",
        "env",
        "project",
        "user",
    )


def test_xdg_config_home_is_where_the_user_config_is(desk: Desk) -> None:
    desk.write("resources: {account: user}", USER)
    desk.write("resources: {account: xdg}", "xdg/hpctrain/config.yaml")
    desk.environment["XDG_CONFIG_HOME"] = str(desk.directory / "xdg")
    assert desk.spec().account == "xdg"


def test_a_config_of_another_name_replaces_the_one_here(desk: Desk) -> None:
    desk.write("resources: {account: here, partition: here}")
    desk.write("resources: {account: other}", "other.yaml")
    spec = desk.spec(config="other.yaml")
    assert (spec.account, spec.partition) == ("other", None)


def test_nothing_behind_a_key_leaves_the_weaker_value(desk: Desk) -> None:
    desk.write("resources: {account: user, nodes: 3}\nlauncher: torchrun", USER)
    desk.write("resources:\n  account:\n  nodes: ~\nlauncher: null\nenvironment:\n")
    spec = desk.spec()
    assert (spec.account, spec.nodes, spec.launcher) == ("user", 3, "torchrun")


def test_sections_of_all_layers_come_together(desk: Desk) -> None:
    desk.write("training: {a: 1, b: 2}\nsbatch: {mail-type: END, nice: 5}", USER)
    desk.write("training: {b: 3, c: null}\nsbatch: {nice: 7}")
    spec = desk.spec({}, "mail-user=x@y", "contiguous")
    assert spec.arguments == ("--a", "1", "--b", "3")
    assert dict(spec.sbatch) == {
        "mail-type": "END",
        "nice": "7",
        "mail-user": "x@y",
        "contiguous": None,
    }


def test_gpus_means_gpus_per_node(desk: Desk) -> None:
    desk.write("resources: {gpus_per_node: 2}", USER)
    desk.write("resources: {gpus: 4}")
    assert desk.spec().gpus_per_node == 4
    desk.write("resources: {gpus: 4, gpus_per_node: 4}")
    assert desk.refused()[1] == "config.yaml:1:13: gpus and gpus_per_node are the same key"


@pytest.mark.parametrize(("strong", "weak"), [("mem", "mem_per_cpu"), ("mem_per_cpu", "mem")])
def test_the_stronger_of_two_rivals_wins(desk: Desk, strong: str, weak: str) -> None:
    desk.write(f"resources: {{{weak}: 4G}}")
    spec = desk.spec({("resources", strong): "8G"})
    names = [name for name, _ in directives.values(spec)]
    assert strong.replace("_", "-") in names
    assert weak.replace("_", "-") not in names


def test_two_rivals_in_one_layer_contradict_each_other(desk: Desk) -> None:
    desk.write("resources:\n  mem: 4G\n  mem_per_cpu: 4G\nenvironment:\n  conda: a\n  venv: b\n")
    assert desk.refused()[1:3] == [
        "config.yaml:3:3: mem_per_cpu and mem are mutually exclusive: a job has one memory request",
        "config.yaml:6:3: venv and conda are mutually exclusive: the second would hide the first",
    ]
    assert desk.refused({("resources", "mem"): "1G", ("resources", "mem_per_cpu"): "1G"})[
        1
    ].startswith("--mem-per-cpu: ")


def test_values_are_what_was_written(desk: Desk) -> None:
    desk.write("resources: {account: 0123, qos: no, partition: 1e3, gpus: '4', constraint: on}")
    spec = desk.spec()
    assert (spec.account, spec.qos, spec.partition, spec.gpus_per_node, spec.constraint) == (
        "0123",
        "no",
        "1e3",
        4,
        "on",
    )


def test_all_errors_at_once_from_top_to_bottom(desk: Desk) -> None:
    desk.write("""\
resources:
  gpus_per_nod: 4
  nodes: two
  time: 1h
launcher: torchrunn
walltime: 5
modules: [a]
sbatch:
  gpus: 3
  comment: "a\\nb"
training:
  stop: ["a\\0b"]
environment:
  modules: [ok, "a b"]
""")
    assert desk.refused() == [
        "error: 9 problems in config.yaml",
        "config.yaml:2:3: unknown key 'gpus_per_nod' in resources; did you mean 'gpus_per_node'?",
        "config.yaml:3:3: nodes must be a whole number, not 'two'",
        (
            "config.yaml:4:3: time must be a time limit in one of Slurm's forms, such as 30 (minutes),"
            " 01:30:00 or 2-00:00:00, not '1h'"
        ),
        "config.yaml:5:1: launcher must be 'accelerate', 'torchrun' or 'srun', not 'torchrunn'",
        "config.yaml:6:1: unknown key 'walltime'; did you mean 'time', in resources?",
        "config.yaml:7:1: unknown key 'modules'; it belongs in environment, indented below it",
        (
            "config.yaml:9:3: 'gpus' in sbatch must not be here: hpctrain writes that directive"
            " itself; use --gpus"
        ),
        (
            "config.yaml:10:3: 'comment' in sbatch must be one line without control characters, not"
            " 'a\\nb'"
        ),
        "config.yaml:14:17: modules: item 2 must be a module name such as cuda/12.2, not 'a b'",
        "hint: edit config.yaml, then run: hpctrain render",
    ]


def test_errors_of_several_layers_at_once(desk: Desk) -> None:
    desk.write("job_name: -x\n")
    desk.write("offline: maybe\n", USER)
    desk.environment["HPCTRAIN_NODES"] = "0"
    lines = desk.refused({("resources", "gpus_per_node"): "-1"}, "mem=5G")
    assert lines[0].startswith("error: 5 problems in ")
    text = "\n".join(lines)
    for words in (
        "config.yaml:1:1: job_name",
        f"{USER}:1:1: offline",
        "HPCTRAIN_NODES: nodes must be between 1 and 10000, not 0",
        "--gpus must be between 0 and 64, not -1",
        "--sbatch: 'mem' in sbatch",
    ):
        assert words in text


BAD: list[tuple[str, list[str]]] = [
    (
        "nodes",
        [
            "0",
            "-1",
            "10001",
            "1.5",
            "1e3",
            "two",
            "true",
            "[1]",
            "{a: 1}",
            "99999999999999999999",
            "'٣'",
            "9" * 5000,
            "''",
        ],
    ),
    ("gpus_per_node", ["-4", "65", "4x", "[4, 4]", "null x"]),
    ("cpus_per_task", ["0", "5000", "a"]),
    ("time", ["0", "-5", "1h", "UNLIMITED", "400-0", "[1]", "'1:00\\n'", "$(date)", "''"]),
    ("mem", ["1.5G", "-1", "64X", "2000T", "$(free)", "[1]", "true"]),
    ("mem_per_cpu", ["0", "x"]),
    (
        "partition",
        [
            "a b",
            "'$(touch X)'",
            "é",
            "a;b",
            "'#'",
            "'100%'",
            '"a\\nb"',
            "-p",
            "a/b",
            "x'y",
            "[a]",
            "true'",
        ],
    ),
    ("account", ["'`id`'", "a|b", "a\\b", "''", "' '"]),
    ("qos", ['"a\\"b"', "a=b"]),
    ("constraint", ["$x", "a b", '"a\\n#SBATCH --wrap=x"', "';'"]),
    ("reservation", ["a b", "-x"]),
    ("gpu_type", ["a:2", "a,gpu:1", "../x"]),
    ("gpu_directive", ["gpus_per_node", "gres-flags", "true"]),
]


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in BAD for text in texts])
def test_bad_values(desk: Desk, key: str, text: str) -> None:
    desk.write(f"resources:\n  {key}: {text}\n")
    lines = desk.refused()
    assert "config.yaml:2:" in lines[1]
    assert all(len(line) < 300 for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "-x",
        "a b",
        "a/b",
        "../x",
        "a%j",
        "é",
        "a\nb",
        "$(id)",
        "a'b",
        'a"b',
        "#a",
        "x" * 65,
        ".x",
        "a;b",
        "a`b`",
    ],
)
def test_bad_job_names(desk: Desk, name: str) -> None:
    assert desk.refused({("job_name",): name})[1].startswith("--job-name must ")


@pytest.mark.parametrize("path", [entry.path for entry in FIELDS], ids="-".join)
@pytest.mark.parametrize(
    "character", ["\n", "\r", "\x1b", "\x00", "\x7f", "\x85", "\u2028"], ids=ascii
)
def test_no_field_takes_a_control_character(
    desk: Desk, path: tuple[str, ...], character: str
) -> None:
    assert any("not" in line for line in desk.refused({path: f"/a{character}touch CANARY"})[1:-1])


REFUSED_SBATCH = [
    "gpus: 3",
    "gpus-per-node: 3",
    "gpus-per-n: 3",
    "gpus-per-task: 1",
    "ntasks: 4",
    "ntasks-per-n: 4",
    "tasks: 2",
    "tasks-per-node: 2",
    "nodes: 2",
    "node: 2",
    "job-name: x",
    "chdir: /",
    "output: x",
    "error: x",
    "mem: 5G",
    "time: 5",
    "tim: 5",
    "open-mode: truncate",
    "gres: 'gpu:2'",
    "gres: 'nvme:1,gpu'",
    "gres: 'GPU:2'",
    "Requeue: true",
    "--nice: 5",
    "n: 2",
    "a b: 2",
    "'x=y': 1",
    "'nice\n': 1",
    "wrap: touch CANARY",
    "test-only: true",
    "wait: true",
    "help: true",
    "version:",
    "nice: [1]",
    "nice: {a: 1}",
    "comment: ''",
    'comment: "a\\nb"',
    'comment: "a\\rb"',
    'mail-user: "\\u2028"',
]


@pytest.mark.parametrize("line", REFUSED_SBATCH)
def test_sbatch_options_that_are_refused(desk: Desk, line: str) -> None:
    desk.write(f"sbatch:\n  {line}\n" if "\n" not in line else 'sbatch:\n  "nice\\n": 1\n')
    lines = desk.refused()
    assert lines[0] == "error: 1 problem in config.yaml"
    assert lines[1].startswith("config.yaml:2:3: ")


def test_sbatch_options_that_are_passed_on(desk: Desk) -> None:
    desk.write("""\
sbatch:
  mail-type: END
  contiguous: true
  hold:
  exclusive: false
  comment: 'say "hi" # $(touch CANARY) 100% é'
  gres: nvme:1
  nice: 5
  time-min: 5
  signal: B:USR1@120
""")
    spec = desk.spec()
    values = dict(spec.sbatch)
    assert values.pop("comment") == 'say "hi" # $(touch CANARY) 100% é'
    assert values == {
        "mail-type": "END",
        "contiguous": None,
        "hold": None,
        "gres": "nvme:1",
        "nice": "5",
        "time-min": "5",
        "signal": "B:USR1@120",
    }
    assert dict(directives.values(spec))["gres"] == "gpu:1,nvme:1"


def test_training_arguments(desk: Desk) -> None:
    desk.write("""\
training:
  learning_rate: 4e-5
  seed: 0123
  packing: True
  bf16: false
  resume: no
  text: "True"
  nothing: null
  empty: ''
  stop: [a, "b c", 1]
  none: []
  model_init_kwargs: {dtype: bfloat16, layers: [1, "2"], cache: true, deep: {x: null, é: 1.5}}
  nested: [[1, 2], {a: b}]
  prompt: |
    it's $(date)
    `x`
""")
    expected = [
        "--learning_rate",
        "4e-5",
        "--seed",
        "0123",
        "--packing",
        "true",
        "--bf16",
        "false",
        "--resume",
        "no",
        "--text",
        "True",
        "--empty",
        "",
        "--stop",
        "a",
        "b c",
        "1",
        "--none",
        "--model_init_kwargs",
        '{"dtype": "bfloat16", "layers": [1, "2"], "cache": true, "deep": {"x": null, "é": 1.5}}',
        "--nested",
        "[1, 2]",
        '{"a": "b"}',
        "--prompt",
        "it's $(date)\n`x`\n",
    ]
    assert desk.spec().arguments == tuple(expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        # the nearest key that there is
        ("resources: {gpu: 4}", "did you mean 'gpus_per_node'"),
        ("resources: {cpus: 4}", "did you mean 'cpus_per_task'"),
        ("resources: {queue: x}", "did you mean 'partition'"),
        ("resources: {memory: 4G}", "did you mean 'mem'"),
        ("resources: {mem-per-cpu: 4G}", "did you mean 'mem_per_cpu'"),
        ("resources: {acount: x}", "did you mean 'account'"),
        ("resource: {nodes: 1}", "did you mean 'resources'"),
        ("Job_name: x", "did you mean 'job_name'"),
        ("name: x", "did you mean 'job_name'"),
        ("partiton: x", "did you mean 'partition'"),
        ("environment: {module: [x]}", "did you mean 'modules'"),
        ("trainings: {}", "did you mean 'training'"),
        # its section
        ("time: 5", "it belongs in resources"),
        ("gpus: 5", "in resources?"),
        ("conda: x", "environment"),
        ("env: {A: b}", "it belongs in environment"),
        (
            "zzz: 1",
            "config.yaml:1:1: unknown key 'zzz'; known are accelerate_config, array, chdir, ",
        ),
        # no name of an argument
        ("training: {-x: 1}", "is not an argument name such as learning_rate"),
        ("training: {a b: 1}", "is not an argument name such as learning_rate"),
        ("training: {1a: 1}", "is not an argument name such as learning_rate"),
        ("training: {a=b: 1}", "is not an argument name such as learning_rate"),
        ("training: {$(id): 1}", "is not an argument name such as learning_rate"),
        ("training: {'': 1}", "is not an argument name such as learning_rate"),
        ("training: {é: 1}", "is not an argument name such as learning_rate"),
        # what a program would take for an option
        ("script: -x.py", "must not start with a dash"),
        ("accelerate_config: --help", "must not start with a dash"),
        ("environment: {conda: -n}", "must not start with a dash"),
        ("environment: {venv: -p}", "must not start with a dash"),
        ("template: -t", "must not start with a dash"),
        # no section of that shape
        (b"a: \xff", "cannot read config.yaml: it is not UTF-8 text"),
        ("resources: 5", "config.yaml:1:1: resources must hold keys and values, not '5'"),
        ("environment: [a]", "environment must hold keys and values, not a list"),
        ("sbatch: x", "must hold sbatch options"),
        ("training: [a]", "must hold arguments"),
        ("environment: {modules: cuda}", "modules must be a list"),
        ("offline: maybe", "offline must be true or false, not 'maybe'"),
        ("chdir: [here]", "chdir must be text, not a list"),
    ],
)
def test_what_is_wrong_with_one_line(desk: Desk, content: Any, words: str) -> None:
    desk.write(content)
    assert words in "\n".join(desk.refused())


def test_a_config_that_is_not_there_or_cannot_be_read(desk: Desk) -> None:
    assert desk.refused(config="nope.yaml")[0] == "error: there is no file nope.yaml"
    (desk.directory / "config.yaml").mkdir()
    assert desk.refused()[0] == "error: cannot read config.yaml: Is a directory"
