"""What keeps a study from finding anything."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.check.training import REMOVED, unknown
from hpctrain.jobs.finding import Finding


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with the study of a job that has one."""
    study, arguments = case.spec.study, Arguments(case.spec)
    if study is None or not arguments.ours:
        return
    strategy = arguments.get("eval_strategy")
    if strategy in (None, "no") and not arguments.incomplete:
        said = case.said("training", "eval_strategy", value=strategy or "no")
        yield case.finding(
            "tune-no-evaluation", "error", f"the study {study.name} looks at evaluations, and the training makes none",
            evidence=f"{said}; {case.said('tune', 'study', value=study.name)}",
            reason="every trial would fail at its end, because it has no value",
            fix="eval_strategy: steps and eval_steps: 50 under training in config.yaml",
        )  # fmt: skip
    for key in study.keys:
        name = key.replace("-", "_")
        searched = case.said("tune", "space", key, value="searched")
        yield from unknown(case, name, evidence=searched)
        if name in REMOVED:
            yield case.finding(
                "argument-removed", "error", f"the training knows no {name} any more, and the study searches it",
                evidence=searched,
                reason="transformers 5 removed it, and every trial stops when it reads its arguments",
                fix=f"in its place: {REMOVED[name]}",
            )  # fmt: skip
