"""Strategies for any job config that the schema takes, with everything in it that could end a
quote, a comment or a line.
"""

from typing import Any

import yaml
from hypothesis import strategies as st

from hpctrain.config import layers
from hpctrain.config.spec import JobSpec
from hpctrain.config.to_spec import to_spec
from hpctrain.jobs import render
from hpctrain.util import installed, yaml12

CANARIES = [
    "$(touch CANARY)",
    "`touch CANARY`",
    "; touch CANARY",
    "'; touch CANARY; '",
    '"; touch CANARY; "',
    "' touch CANARY '",
    "#SBATCH --wrap=x",
    "x # y",
    "& touch CANARY &",
    "| touch CANARY",
    "> CANARY",
    "${x:=$(touch CANARY)}",
    "{{ job }}",
    "{% raw %}",
    "%j%x%%",
    "~",
    "*",
    "-n",
    "()",
    "!!",
    "é 😀 \u202e",
    "\u00a0",
    "'",
    '"',
    "$",
    "a'b\"c`d",
]
LINES = [
    "\ntouch CANARY\n",
    "\r\ntouch CANARY",
    "x\n#SBATCH --nodes=99",
    "\n'\ntouch CANARY #",
    "\\\n",
    "\x1b[2J",
    "\x85\u2028",
    "a\\",
    "\\'; touch CANARY",
]

one_line = (
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20)
    | st.sampled_from(CANARIES)
).filter(str.strip)
#: Of paths and names, which programs must not take for options.
path = one_line.filter(lambda text: not text.startswith("-"))
#: Arguments in the config: anything that YAML can write.
argument = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20
) | st.sampled_from(CANARIES + LINES)
#: Arguments on the command line: bytes that are no UTF-8 too.
word = argument | st.sampled_from(["\udcff", "a\udc80\n", "--", "--flag", "--key=a b", "-x", ""])
file_name = path.map(lambda text: text.replace("/", "_")).filter(
    lambda text: text not in (".", "..") and len(text.encode()) < 100
)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@-]{0,10}", fullmatch=True)
number = st.integers


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


resources = optional(
    nodes=number(1, 20),
    gpus=number(0, 16),
    gpu_type=st.sampled_from(["a100", "H100-80.GB"]),
    partition=names,
    account=names,
    qos=names,
    gpu_directive=st.sampled_from(["gres", "gpus-per-node", "gpus", "none"]),
    time=st.sampled_from(["1:30:00", "5", "2-12", "00:00:01", "365-0"]),
    cpus_per_task=number(1, 256),
    cpus_per_gpu=number(1, 64),
    constraint=st.sampled_from(["a100", "a100&(nvme|ssd)", "[rack1*2&rack2]"]),
    reservation=names,
)
memory = st.sampled_from(
    [
        {},
        {"mem": "0"},
        {"mem": "480G"},
        {"mem": "1K"},
        {"mem_per_cpu": "4000"},
        {"mem_per_gpu": "2G"},
    ]
)
sbatch = optional(
    comment=one_line,
    contiguous=st.none(),
    gres=st.sampled_from(["nvme:1", "craynetwork:4,shard:2"]),
    **{"mail-user": one_line, "wckey": one_line},
)
training = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True),
    argument
    | st.lists(argument, max_size=3)
    | st.dictionaries(argument, argument | number(), max_size=2)
    | st.none(),
    max_size=4,
)


modules = st.lists(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@=/-]{0,20}", fullmatch=True), max_size=3
)
#: With a prefix of their own: bash and the stand-ins need variables too.
variable = st.from_regex(r"X_[A-Z0-9_]{1,6}", fullmatch=True)
#: Files that have to be there when the script runs; the folders keep them apart.
hooks = st.lists(file_name.map(lambda name: f"hooks/{name}"), max_size=2, unique=True)
binds = st.lists(path.filter(lambda text: "," not in text), max_size=2)
container = st.fixed_dictionaries(
    {
        "image": file_name.map(lambda name: f"images/{name}"),
        "engine": st.sampled_from(["apptainer", "singularity", "pyxis", "ce"]),
    },
    optional={"binds": binds, "gpu_libraries": st.sampled_from(["nv", "rocm", "none"])},
)
python = (
    st.just({})
    | file_name.map(lambda name: {"venv": name})
    | path.map(lambda name: {"conda": name})
    | file_name.map(lambda name: {"uv": name})
    | path.map(lambda name: {"pixi": name})
    | container.map(lambda image: {"container": image})
)
environment = optional(
    modules=modules,
    modules_first=modules,
    module_start=st.sampled_from(["purge", "reset", "none"]),
    module_use=st.lists(path, max_size=2),
    env=st.dictionaries(variable, one_line, max_size=2),
    unset=st.lists(variable, max_size=2),
    profile=st.sampled_from(["large-scale", "debug", "mine"]),
    before=hooks,
    before_each_node=hooks,
    after=hooks,
    secrets=st.dictionaries(
        variable,
        st.just("environment") | file_name.map(lambda name: f"./secrets/{name}"),
        max_size=2,
    ),
)
launch = optional(
    shebang=st.sampled_from(["#!/bin/bash", "#!/bin/bash -l"]),
    master_addr_suffix=st.sampled_from(["i", "-ib0.x"]),
    cpu_bind=st.sampled_from(["none", "cores", "mask_cpu:0xfe00,0xfe"]),
    gpus_on_srun=st.booleans(),
)
notify = st.builds(
    lambda outcomes, program, told: {"on": outcomes, "command": f"./told/{program}", **told},
    st.lists(st.sampled_from(["completed", "failed", "stopped"]), min_size=1, max_size=3),
    file_name,
    optional(
        mail=st.sampled_from(["me@example.org", "me"]),
        webhook=file_name.map(lambda name: f"./secrets/{name}"),
    ),
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Return the data of a valid config.yaml."""
    config = draw(
        optional(
            job_name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
            script=path,
            data=path.map(lambda name: {"path": name, "stage": "off"}),
            offline=st.booleans(),
            accelerate_config=path,
            sbatch=sbatch,
            training=training,
            array=st.sampled_from(["0-3%2", "5", "1,3-9:2"]),
            restart=optional(
                mode=st.sampled_from(["auto", "requeue", "chain", "off"]), max=number(0, 99)
            ),
        )
    )
    config["launcher"] = draw(st.sampled_from(["accelerate", "torchrun", "srun"]))
    config["resources"] = draw(resources) | draw(memory)
    if (
        config["resources"].get("gpu_directive") == "gpus"
    ):  # of the whole job: refused on several nodes
        config["resources"]["nodes"] = 1
    if "cpus_per_task" in config["resources"]:
        config["resources"].pop("cpus_per_gpu", None)
    config["environment"] = draw(environment) | draw(python)
    config["environment"]["profiles"] = {
        "mine": {"env": draw(st.dictionaries(variable, one_line, max_size=1))}
    }
    for name in config["environment"].get("secrets", {}):
        config["environment"].get("env", {}).pop(name, None)
        config["environment"]["unset"] = [
            other for other in config["environment"].get("unset", []) if other != name
        ]
    config["launch"] = draw(launch)
    config |= draw(st.just({}) | notify.map(lambda told: {"notify": told}))
    if config["launcher"] == "srun":  # whose calls of python are counted
        config.get("notify", {}).pop("webhook", None)
    if draw(st.booleans()):
        config.pop("accelerate_config", None)
        config["sharding"] = draw(
            st.sampled_from(
                ["ddp", "fsdp", "zero2", "zero3"]
                if config["resources"].get("gpus") != 0
                else ["ddp"]
            )
        )
    if "script" not in config:
        config["task"] = draw(st.sampled_from(["sft", "classify"]))
    return config


def spec_of(config: dict[str, Any], words: list[str], directory: str) -> JobSpec:
    """Return the job of `config`, by way of a YAML file."""
    text = yaml.safe_dump(config, default_style='"', width=10_000)
    document = yaml12.load(
        text.replace('!!null "null"', "null").replace("!!int ", "").replace("!!bool ", ""),
        "config.yaml",
    )
    return to_spec(
        layers.resolve([layers.from_document(document, "config.yaml")]).config,
        directory=directory,
        arguments=words,
    )


def script_of(spec: JobSpec, words: list[str], directory: str, *, standalone: bool = False) -> str:
    """Return the rendered script of `spec`."""
    arguments = ("--nodes", "2", "--", *words)
    return render.render(
        spec,
        installed.templates(),
        template=render.template_name(spec),
        version="1.2",
        directory=directory,
        arguments=arguments,
        standalone=standalone,
    )
