"""Any valid config on any cluster: no forbidden directive, all required ones, one GPU dialect,
quotes that close, directives first.
"""

import subprocess
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.clusters import load
from hpctrain.clusters.profile import Cluster
from hpctrain.config import layers
from hpctrain.config.profile_layer import cluster_layer
from hpctrain.config.spec import JobSpec
from hpctrain.config.to_spec import to_spec
from hpctrain.slurm.notations import directives
from hpctrain.util import yaml12
from tests.jobs import any_job

NAMES = sorted(load.available({}))
GPU_DIRECTIVES = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
#: What a user may still ask for against the site's word; `check` then says so. Here the profile has
#: the say.
OVERRIDES = ("gpu_directive", "gpu_type", "mem", "mem_per_cpu", "mem_per_gpu")


def spec_of(config: dict[str, Any], cluster: Cluster) -> JobSpec:
    document = yaml12.load(
        yaml.safe_dump(config, default_style='"')
        .replace('!!null "null"', "null")
        .replace("!!int ", "")
        .replace("!!bool ", ""),
        "c",
    )
    found = [layers.from_document(document, "config.yaml")]
    found.append(cluster_layer(cluster, found))
    return to_spec(layers.resolve(found).config, directory="/srv/project")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None)
@given(config=any_job.configs(), account=st.booleans(), data_=st.data())
def test_any_job_on_any_cluster(
    name: str, config: dict[str, Any], account: bool, data_: st.DataObject
) -> None:
    cluster = load.load(name, {})
    profile = cluster.profile
    for key in OVERRIDES:
        config["resources"].pop(key, None)
    config["sbatch"] = {
        key: value
        for key, value in config.get("sbatch", {}).items()
        if key not in profile.directives.forbidden
    }
    if profile.partitions:
        config["resources"]["partition"] = data_.draw(st.sampled_from(sorted(profile.partitions)))
    config["launch"].pop("gpus_on_srun", None)
    config["resources"].pop("constraint", None)
    config["resources"].pop("account", None)
    if account and profile.account.example:
        config["resources"]["account"] = profile.account.example
    spec = spec_of(config, cluster)
    script = any_job.script_of(spec, [], "/srv/project")
    checked = subprocess.run(
        ["bash", "-n"], input=script.encode("utf-8", "surrogateescape"), capture_output=True
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
    lines = script.split("\n")
    first_command = next(
        number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")
    )
    assert not [line for line in lines[first_command:] if line.startswith("#SBATCH")]
    values = directives.last_values(directives.read(script))
    assert not set(values) & set(profile.directives.forbidden)
    required = set(profile.directives.required) - (
        {"account"} if "account" not in config["resources"] else set()
    )
    assert required <= set(values), f"{required - set(values)} is required"
    asked = [option for option in GPU_DIRECTIVES if option in values] + ["gres"] * (
        "gpu" in (values.get("gres") or "")
    )
    none = profile.gpu_request.dialect == "none" or not spec.gpus_per_node
    assert len(asked) == (0 if none else 1), asked
    if profile.gpu_request.on_srun and spec.gpus_per_node:
        assert f"--gpus-per-node={spec.gpus_per_node}" in script
    assert lines[0] == (config["launch"].get("shebang") or profile.launch.shebang or "#!/bin/bash")


@pytest.mark.parametrize("name", NAMES)
def test_what_the_user_says_wins(name: str) -> None:
    cluster = load.load(name, {})
    said = {
        "resources": {
            "partition": "mine",
            "gpus_per_node": 1,
            "cpus_per_task": 3,
            "qos": "q",
            "mem": "7G",
        },
        "offline": False,
        "environment": {"env": {"NCCL_NET": "Socket"}},
    }
    spec = spec_of(
        {**said, "launch": {"cpu_bind": "cores", "shebang": "#!/bin/bash --login"}}, cluster
    )
    assert (spec.partition, spec.gpus_per_node, spec.cores_per_task, spec.qos, spec.mem_bytes) == (
        "mine",
        1,
        3,
        "q",
        7 * 1024**3,
    )
    assert (spec.offline, dict(spec.env)["NCCL_NET"], spec.cpu_bind, spec.shebang) == (
        False,
        "Socket",
        "cores",
        "#!/bin/bash --login",
    )
