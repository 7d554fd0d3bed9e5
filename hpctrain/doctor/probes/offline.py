"""Probe of offline readiness: the training starts in a network namespace of its own, which has no interface but an idle `lo`.

Where the kernel or the site allows no such namespace, the libraries are told that they are offline and every proxy points nowhere:
weaker, because a library may not ask.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from hpctrain.doctor import start
from hpctrain.doctor.facts import Case, OfflineFacts
from hpctrain.doctor.shells import activation, shell_of
from hpctrain.errors import SchedulerError
from hpctrain.jobs.arguments import Arguments
from hpctrain.scheduler import process

LIMIT_S = 180.0
_MARK = "HPCTRAIN-OFFLINE "  # of training.offline_check, which this side does not import
_NOWHERE = "http://127.0.0.1:9"  # the discard port
_INPUTS = {"model": "model_name_or_path", "dataset": "dataset_name"}
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def offline(case: Case) -> OfflineFacts:
    """Start the training's first steps without a network and return how far they came."""
    spec = case.spec
    if (reason := _nothing_to_try(case)) is not None:
        return OfflineFacts(skipped=reason)
    prefix, refused = _namespace()
    words = ["--script", spec.script] if spec.script is not None else ["--task", spec.task, *spec.arguments]
    script = f'{activation(spec)}\ncd "$1" && shift && exec python -m hpctrain.training.offline_check "$@"'
    variables = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "offline"}
    if not prefix:
        variables |= dict.fromkeys(_PROXIES, _NOWHERE) | {"no_proxy": "", "NO_PROXY": ""}
    # One thread: a login node is everybody's.
    environment = {**process.clean(os.environ), **variables, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    began = time.monotonic()
    way = "namespace" if prefix else "variables"
    try:
        done = start.run(
            [*prefix, *shell_of(spec), script, "doctor", _directory(spec.chdir), *words], timeout=LIMIT_S - 10, environment=environment
        )
    except start.TooLateError as error:
        return OfflineFacts(way=way, late=True, said=(error.what,), no_namespace=refused)  # type: ignore[arg-type]
    except SchedulerError as error:
        return OfflineFacts(skipped=error.what)
    told = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    failed = next((line.removeprefix("failed ") for line in told if line.startswith("failed ")), None)
    if failed is None and done.returncode != 0:
        failed = "the start of Python"
    return OfflineFacts(
        way=way,  # type: ignore[arg-type]
        interfaces=tuple(name for line in told if line.startswith("interfaces ") for name in line.removeprefix("interfaces ").split(",")),
        steps=tuple(line.removeprefix("done ") for line in told if line.startswith("done ")),
        failed=failed,
        said=start.last_words(done.stderr, 4) if failed else (),
        no_namespace=refused,
        seconds=time.monotonic() - began,
    )


def _nothing_to_try(case: Case) -> str | None:
    spec = case.spec
    if case.quick:
        return "--quick"
    if spec.container is not None:
        return "the training runs in a container"
    if spec.script is not None and not spec.script.endswith(".py"):
        return f"{spec.script} is no Python file"
    named = Arguments(spec)
    lacking = [what for what, option in _INPUTS.items() if named.get(option) is None]
    if named.ours and lacking and not named.incomplete:
        return f"the job names {' and '.join(f'no {what}' for what in lacking)} yet"
    return None


def _directory(chdir: str) -> str:
    return chdir if Path(chdir).is_dir() else str(Path.cwd())


def _namespace() -> tuple[list[str], str | None]:
    """Return what goes in front of a command to cut it off from the network, or why there is no such thing here."""
    if shutil.which("unshare") is None:
        return [], "there is no unshare program"
    said = ""
    # As root a network namespace alone is enough, and keeps the user's own rights on files; others need a user namespace around it.
    for options in (["--net"], ["--user", "--map-current-user", "--net"], ["--user", "--map-root-user", "--net"]):
        try:
            done = start.run(["unshare", *options, "true"], timeout=10)
        except (start.TooLateError, SchedulerError) as error:
            return [], error.what
        if done.returncode == 0:
            return ["unshare", *options], None
        said = " ".join(start.last_words(done.stderr))
    return [], said
