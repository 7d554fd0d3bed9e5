"""The profiles that come with hpctrain: attested in full, true to the facts that they were made
from, and of the schema's form.
"""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from hpctrain.clusters import load
from hpctrain.clusters.profile import Profile
from hpctrain.slurm.notations import units
from hpctrain.util import yaml12
from hpctrain.util.schema import known_keys

NAMES = sorted(load.available({}))
GIB = 1 << 30
SCHEMA = json.loads((load.SHIPPED / "profile.schema.json").read_text())


def profile(name: str) -> Profile:
    return load.load(name, {}).profile


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_level_and_a_source(name: str) -> None:
    found = load.read_source(name, {})
    for path, _ in load.leaves(found.data):
        assert path in found.origins, path
        assert found.origins[path].level in ("documented", "reported", "seen", "recalled"), path
        assert re.match(r"https?://\S+$", found.origins[path].source), path
    cluster = load.load(name, {})
    assert cluster.origins == found.origins
    for path in load.leaves(cluster.profile.to_data(defaults=False)):
        assert path[0] == ("name",) or path[0] in cluster.origins, path


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_its_schema_and_has_its_form(name: str) -> None:
    text = (load.SHIPPED / f"{name}.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=profile.schema.json\n")
    validator = jsonschema.Draft202012Validator(SCHEMA)
    problems = [
        f"{list(error.path)}: {error.message}"
        for error in validator.iter_errors(yaml12.to_json_value(yaml12.load(text, name).data))
    ]
    assert not problems


def test_the_schema_for_editors_has_the_keys_of_the_types() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    sections = known_keys(Profile)
    top = {*sections[()], "evidence", "source", "sources"}
    assert set(SCHEMA["properties"]) == top
    described = {
        frozenset(definition["properties"])
        for definition in SCHEMA["$defs"].values()
        if "properties" in definition
    }
    assert described == {
        frozenset({*keys, "evidence", "source"}) for path, keys in sections.items() if path
    }


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("title: T", True),
        ("title: T\nextends: leonardo", False),
        ("centre: X", False),
        (
            (
                "title: T\npartitions: {gpu: {time_max: 24:00:00, nodes_max: {value: 4, evidence:"
                " seen, source: docs}}}"
            ),
            True,
        ),
        ("title: T\npartitions: {evidence: seen, gpu: null}", True),
        ("title: T\npartitions: {gpu: {node_max: 4}}", False),
        ("title: T\npartitions: {gpu: {nodes_max: -4}}", False),
        ("title: T\npartitions: {gpu: {nodes_max: {value: 4, evidence: rumour}}}", False),
        ("title: T\npartitions: {gpu: {nodes_max: {evidence: seen}}}", False),
        (
            "title: T\ngpu_request: {dialect: gres, also: [gpus, {value: none, evidence: seen}]}",
            True,
        ),
        ("title: T\ngpu_request: {dialect: gress}", False),
        ("title: T\nnetwork: {variables: {NCCL_CROSS_NIC: 1}}", True),
        ("title: T\nnetwork: {variables: {NCCL_CROSS_NIC: [1]}}", False),
        ("title: T\nmemory: {per_gpu: 60G}\ntraps: [a, b]", True),
        ("title: T\nmemory: {evidence: own, per_gpu: [60G]}", False),
    ],
)
def test_what_the_schema_takes_and_refuses(text: str, right: bool) -> None:
    data = yaml12.to_json_value(yaml12.load(text, "x").data)
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(data) == right


#: What the facts mark, one row for each: evidence must not get better on the way.
MARKED = """
leonardo           documented  nodes.a100.gpus nodes.a100.cpus nodes.a100.gpu_memory account.list_command login.host defaults.partition
leonardo           reported    partitions.boost_usr_prod.time_max qos.normal.nodes_max qos.boost_qos_bprod.nodes_min internet.compute
leonardo           seen        nodes.a100.memory qos.boost_qos_dbg.time_max qos.boost_qos_lprod.time_max gpu_request.dialect
leonardo           seen        account.pattern storage.WORK.path
leonardo           recalled    qos.boost_qos_dbg.nodes_max qos.boost_qos_lprod.nodes_max partitions.dcgp_usr_prod.note
leonardo           recalled    modules.suggested.4
lumi_g             documented  partitions.standard-g.time_max nodes.mi250x.cpus memory.per_gpu
lumi_g             documented  launch.cpu_bind_per_gpu account.pattern
lumi_g             recalled    internet.compute storage.SCRATCH.path
juwels_booster     documented  nodes.a100.cpus partitions.booster.time_max partitions.booster.whole_nodes internet.compute slurm.note
juwels_booster     documented  modules.suggested.0
juwels_booster     reported    launch.variables.CUDA_VISIBLE_DEVICES
juwels_booster     seen        launch.master_addr_suffix launch.cpu_bind partitions.develbooster.time_max network.interface
juwels_booster     seen        gpu_request.dialect account.required
juwels_booster     recalled    partitions.largebooster.nodes
jupiter_booster    documented  nodes.gh200.arch nodes.gh200.cpus
jupiter_booster    reported    partitions.booster.time_max billing.unit internet.compute account.required
jupiter_booster    seen        gpu_request.dialect modules.suggested.0 storage.PROJECT.path launch.variables.SLURM_MPI_TYPE
jupiter_booster    recalled    network.interface
marenostrum5_acc   reported    qos.acc_debug.time_max qos.acc_ehpc.cpus_max
marenostrum5_acc   seen        nodes.h100.cpus_per_gpu gpu_request.dialect account.pattern internet.compute storage.PROJECTS.path
marenostrum5_acc   seen        qos_required
marenostrum5_acc   recalled    nodes.h100.memory nodes.h100.gpu_memory network.interface internet.login
meluxina           documented  partitions.gpu.whole_nodes directives.default.hint modules.on_login_nodes storage.HOME.path
meluxina           documented  account.list_command
meluxina           seen        account.pattern defaults.qos
meluxina           recalled    nodes.a100.cpus nodes.a100.memory internet.compute login.port
karolina           reported    partitions.qgpu.time_max nodes.a100.cpus_per_gpu internet.compute storage.SCRATCH.purge_days
karolina           seen        gpu_request.dialect account.pattern memory.request
vega               seen        gpu_request.dialect account.example
vega               recalled    partitions.gpu.time_max nodes.a100.gpus storage.HOME.path
deucalion          reported    partitions.normal-a100-40.time_max nodes.a100_80.count slurm.max_array_size
deucalion          reported    launch.shebang modules.never_purge
perlmutter         seen        nodes.a100.select.constraint nodes.a100_80.count qos.debug.time_max gpu_request.dialect account.pattern
perlmutter         seen        storage.SCRATCH.path
perlmutter         recalled    qos.regular.time_max nodes.a100.cpus nodes.a100.cpus_per_gpu internet.compute
frontier           documented  partitions.batch.time_by_nodes.1.time_max partitions.extended.nodes_max nodes.mi250x.cpus
frontier           documented  gpu_request.on_srun account.pattern
frontier           recalled    internet.proxy
tacc_vista         documented  nodes.gh200.arch directives.forbidden.gres directives.required.0
tacc_vista         documented  launch.shebang memory.request
tacc_lonestar6     documented  partitions.gpu-a100.nodes_max nodes.a100.gpus nodes.h100.gpu_memory directives.forbidden.mem
ncsa_delta         documented  memory.default_per_cpu partitions.gpuA100x4.time_default nodes.h200x8.gpu_memory account.pattern
ncsa_delta         documented  slurm.note modules.start
jean_zay           documented  partitions.gpu_p13.time_max nodes.h100.select.constraint gpu_request.dialect
jean_zay           reported    partitions.gpu_p5.nodes qos.qos_gpu_h100-t3.time_max storage.SCRATCH.purge_days internet.compute
jean_zay           reported    network.interface
jean_zay           seen        nodes.h100.cpus_per_gpu directives.default.hint modules.start nodes.h100.modules_first.0 account.pattern
jean_zay           recalled    storage.JOBSCRATCH.note nodes.h100.memory
alps_clariden      documented  partitions.normal.time_max nodes.gh200.cpus network.variables.NCCL_NET
alps_clariden      documented  launch.variables.CUDA_CACHE_DISABLE
alps_clariden      recalled    network.interface
isambard_ai        documented  partitions.workq.time_max nodes.gh200.cpus_per_gpu network.variables.NCCL_SOCKET_IFNAME
isambard_ai        documented  billing.reserved
isambard_ai        recalled    internet.compute
randi              reported    login.host modules.suggested.1
randi              seen        partitions.gpuq.nodes nodes.a100.gpus account.required storage.DATA.path
randi              recalled    partitions.tier1q.note nodes.a100.gpu
generic_university recalled    gpu_request.dialect account.required
"""


@pytest.mark.parametrize(
    "row", [line for line in MARKED.splitlines() if line], ids=lambda row: "-".join(row.split()[:2])
)
def test_evidence_is_as_good_as_the_facts_and_no_better(row: str) -> None:
    name, level, *paths = row.split()
    origins = load.load(name, {}).origins
    assert {path: origins[tuple(path.split("."))].level for path in paths} == dict.fromkeys(
        paths, level
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_consistent_in_itself(name: str) -> None:
    cluster = profile(name)
    for kind, shape in cluster.nodes.items():
        assert shape.gpus > 0 or (shape.gpu, shape.vendor, shape.gpu_memory) == (
            None,
            None,
            None,
        ), kind
        assert shape.cpus is None or (shape.cpus_per_gpu or 0) * shape.gpus <= shape.cpus, kind
    for partition in cluster.partitions.values():
        assert [row.nodes_min for row in partition.time_by_nodes] == sorted(
            row.nodes_min for row in partition.time_by_nodes
        )
        assert (partition.time_default or 0) <= (partition.time_max or units.MAX_SECONDS)
    if cluster.account.pattern and cluster.account.example:
        assert re.fullmatch(cluster.account.pattern, cluster.account.example)
    assert not set(cluster.directives.forbidden) & {
        *cluster.directives.required,
        *cluster.directives.default,
    }
    assert sum(partition.default for partition in cluster.partitions.values()) <= 1
    if cluster.gpu_request.dialect == "gres":
        assert "gres" not in cluster.directives.forbidden
    assert cluster.nodes or name == "generic_university"


def test_the_nodes_that_a_job_lands_on() -> None:
    zay, cray = profile("jean_zay"), profile("perlmutter")
    assert zay.shape_name(partition=None) == "v100"
    assert zay.shape_name(partition=None, constraint="v100-32g") == "v100_32"
    assert zay.shape_name(partition=None, account="abc@h100") == "h100"
    assert zay.shape_name(partition=None, account="abc@v100") == "v100"
    assert zay.shape_name(partition="gpu_p5") == "a100"
    assert cray.shape_name(partition=None) == "a100"
    assert cray.shape_name(partition=None, constraint="gpu&hbm80g") == "a100_80"
    assert profile("ncsa_delta").shape_name(partition="gpuH200x8-preempt") == "h200x8"


def test_the_share_of_a_gpu() -> None:
    delta, juwels = profile("ncsa_delta").nodes, profile("juwels_booster").nodes
    assert delta["a100x4"].memory_for(1) == 57 * GIB, (
        "a tenth of what is built in is left to the system"
    )
    assert profile("lumi_g").nodes["mi250x"].memory_for(1) == 60 * GIB
    assert delta["a40x4"].memory_for(1) is None
    assert delta["a100x4"].memory_for(4) == 230 * GIB, "rounded once for all GPUs"
    assert (juwels["a100"].cpus_for_each_gpu, delta["mi100x8"].cpus_for_each_gpu) == (24, None)


def test_the_table_of_the_page_is_that_of_the_profiles(request: pytest.FixtureRequest) -> None:
    page = Path(__file__).parents[2] / "docs" / "clusters.md"
    rows = []
    for name in NAMES:
        cluster, found = profile(name), load.read_source(name, {})
        counts = load.tally(found.data, found.origins)
        kinds = (
            ", ".join(
                dict.fromkeys(
                    f"{shape.gpus} x {shape.gpu}" for shape in cluster.nodes.values() if shape.gpus
                )
            )
            or "-"
        )
        levels = " | ".join(
            str(counts.get(level, 0)) for level in ("documented", "reported", "seen", "recalled")
        )
        rows.append(
            f"| [{name}]({cluster.docs}) | {cluster.title} | {cluster.centre or '-'} | {kinds} |"
            f" {levels} |"
        )
    text = page.read_text()
    expected = re.sub(
        r"(<!-- table: .*? -->\n.*\n.*\n)(?:\|.*\n)*",
        lambda match: match[1] + "".join(f"{row}\n" for row in rows),
        text,
        count=1,
    )
    if request.config.getoption("--update-docs"):
        page.write_text(expected)
    assert text.count("<!-- table: ") == 1
    assert page.read_text() == expected, "write it with: pytest --update-docs"


def test_the_examples_of_the_page_are_profiles(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    tiger, attested = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "tiger.yaml").write_text(tiger)
    (tmp_path / "attested.yaml").write_text(attested)
    environment = {"HPCTRAIN_CLUSTERS": str(tmp_path)}
    assert load.load("tiger", environment).profile.nodes["h100"].cpus == 96
    origins = load.load("attested", environment).origins
    assert origins["partitions", "gpu", "nodes_max"].source == "https://wiki.university.example/gpu"
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for text in (tiger, attested):
        assert validator.is_valid(yaml12.to_json_value(yaml12.load(text, "x").data))
