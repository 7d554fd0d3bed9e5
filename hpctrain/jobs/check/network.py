"""What a job would fetch from, or send to, the internet that its nodes may not have."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.jobs import shell
from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check.case import Case, Fact, confirm
from hpctrain.jobs.check.files import is_hub_name
from hpctrain.jobs.finding import Finding, Level

#: Trackers of --report_to that talk to a server, and the variable that keeps them from it, where there is one.
_TRACKERS = {
    "wandb": "WANDB_MODE: offline", "comet_ml": "COMET_MODE: OFFLINE", "neptune": None, "clearml": None, "swanlab": None, "dagshub": None,
    "codecarbon": None, "azure_ml": None,
}  # fmt: skip


def rules(case: Case) -> Iterator[Finding]:
    """Return what needs a network that is not there."""
    yield from _hub_names(case)
    if not case.local:
        yield from _switches(case)
        yield from _trackers(case)
        yield from _proxy(case)
        yield from _webhook(case)
    yield from _push(case)


def _internet(case: Case) -> Fact[str] | None:
    return case.fact(case.profile.internet.compute, "internet", "compute") if case.profile is not None else None


def _cut_off(case: Case) -> tuple[Level, str] | None:
    """Return why the training has no network, and how sure that is: the job's own switches, or the site. None where it may have one."""
    if case.spec.offline:
        return "error", f"{case.said('offline', value='true')} sets HF_HUB_OFFLINE=1"
    internet = _internet(case)
    if internet is not None and internet.value == "no" and not case.local:
        return (
            internet.severity,
            f"{internet.source}: compute nodes have no internet{confirm(internet, 'srun curl -sI https://huggingface.co')}",
        )
    return None


def _hub_names(case: Case) -> Iterator[Finding]:
    cut = _cut_off(case)
    around, arguments = case.around, Arguments(case.spec)
    if cut is None or arguments.ours:  # of the shipped training, `model-folder` and `dataset-folder` say it
        return
    for what, option, found in (("model", "model_name_or_path", around.model), ("dataset", "dataset_name", around.dataset)):
        if found is None or found.cached or not is_hub_name(found.where):
            continue
        name = found.where.said
        kind = " --repo-type dataset" if what == "dataset" else ""
        yield case.finding(
            "hub-name", cut[0] if found.cached is False else "warning",
            f"the {what} {name!r} is a name on the hub, and not in the cache",
            evidence=f"{case.said('training', option, value=name)}; {cut[1]}",
            reason="the training tries to fetch it, and stops: we couldn't connect to huggingface.co",
            fix=f"where there is a network: hf download {shell.quote(name)}{kind}",
        )  # fmt: skip


def _switches(case: Case) -> Iterator[Finding]:
    internet = _internet(case)
    if case.spec.offline or internet is None or internet.value != "no":
        return
    yield case.finding(
        "offline-switch", "warning", "the network is left on, and compute nodes have no internet",
        evidence=f"{case.said('offline', value='false')}; {internet.source}",
        reason="libraries wait for time-outs of minutes, on every process, before they use what is local",
        fix=case.fix((("offline",), "true")),
    )  # fmt: skip


def _trackers(case: Case) -> Iterator[Finding]:
    arguments, internet = Arguments(case.spec), _internet(case)
    asked = [name.strip() for name in (arguments.get("report_to") or "").replace(",", " ").split()]
    if internet is None or internet.value != "no":
        return
    env = dict(case.spec.env)
    for name in asked:
        if name not in _TRACKERS or (name == "wandb" and env.get("WANDB_MODE", "offline" if case.spec.offline else "online") != "online"):
            continue
        if name == "comet_ml" and env.get("COMET_MODE", "").lower() == "offline":
            continue
        variable = _TRACKERS[name]
        yield case.finding(
            "tracker-online", internet.severity, f"{name} sends its numbers to a server, and compute nodes have no internet",
            evidence=f"{case.said('training', 'report_to', value=name)}; {internet.source}",
            reason="the training waits for the server when it starts, and stops or hangs",
            fix=f"{variable} in config.yaml under environment.env" if variable else "report_to: tensorboard in config.yaml under training",
        )  # fmt: skip


def _webhook(case: Case) -> Iterator[Finding]:
    internet, notify = _internet(case), case.spec.notify
    if internet is None or internet.value != "no" or notify is None or notify.webhook is None:
        return
    yield case.finding(
        "webhook-offline", "warning", "a webhook is to be told of the end, and compute nodes have no internet",
        evidence=f"{case.said('notify', 'webhook', value=notify.webhook)}; {internet.source}",
        reason="the job script cannot reach it, and says so in the log; the training itself is not held up",
        fix="on the login node, once it is submitted: hpctrain notify RUN --wait; or notify.mail in config.yaml",
    )  # fmt: skip


def _push(case: Case) -> Iterator[Finding]:
    cut = _cut_off(case)
    if cut is None or not Arguments(case.spec).says("push_to_hub"):
        return
    yield case.finding(
        "push-to-hub", cut[0], "the trained model is to be pushed to the hub, and the job has no network",
        evidence=f"{case.said('training', 'push_to_hub', value='true')}; {cut[1]}",
        reason="the training fails at its first save, or at its end",
        fix="push_to_hub: false under training in config.yaml; after the job, where there is a network: hf upload NAME DIRECTORY",
    )  # fmt: skip


def _proxy(case: Case) -> Iterator[Finding]:
    internet = _internet(case)
    if internet is None or internet.value != "proxy" or case.spec.offline or case.profile is None:
        return
    names = {name.lower() for name, _ in case.spec.env} | {name.lower() for name in case.around.variables}
    if "https_proxy" in names:
        return
    proxy = case.profile.internet.proxy or "http://PROXY:PORT"
    yield case.finding(
        "proxy-missing", "warning", "the network is left on, and compute nodes reach it through a proxy only",
        evidence=f"{case.said('offline', value='false')}; {internet.source}",
        reason="without https_proxy every download waits for a time-out and fails",
        fix=f"https_proxy: {proxy} in config.yaml under environment.env",
    )  # fmt: skip
