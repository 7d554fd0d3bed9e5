"""Slurm's and the launchers' known pitfalls, one by one: which rules see each, or why a text cannot show it."""

from __future__ import annotations

import lint_corpus as corpus
import pytest

from hpctrain.jobs.lint import IDS, lint

#: Pitfall → the ids that see it; what a text cannot show stands in the second value.
PITFALLS: list[tuple[str, tuple[str, ...], str]] = [
    ("srun does not inherit --cpus-per-task", ("srun-cpus-per-task",), ""),
    ("SLURM_GPUS_PER_NODE needs --gpus-per-node", ("slurm-variable-unset",), ""),
    ("--gres=gpu with --gpus-per-node", ("two-gpu-dialects", "gpu-value"), ""),
    ("--exclusive gives no memory, and no GPUs to steps", ("exclusive-without-mem", "exclusive-without-gpus"), ""),
    ("--gpus-per-task hides GPUs, and needs tasks", ("gpus-per-task-hides", "gpus-per-task-without-tasks"), ""),
    ("--mem options exclude each other", ("mem-twice", "invalid-mem"), "SLURM_MEM_PER_* of an outer job stand in no text"),
    ("a site that refuses --gres", (), "only a cluster profile knows: hpctrain check"),
    ("--ntasks with --ntasks-per-node", ("ntasks-and-per-node", "launchers-per-node", "srun-per-node-ignored"), ""),
    ("SLURM_NTASKS is set by -n or --ntasks-per-*", ("slurm-variable-unset",), "what libraries read by themselves stands in no text"),
    ("ranks expanded in the batch shell", ("rank-expanded-early", "rank-not-expanded"), ""),
    ("accelerate's static default, rdzv_conf", ("rdzv-conf-backend", "rank-missing", "rendezvous-missing"), ""),
    ("accelerate's port check", ("fixed-port", "launchers-per-node", "port-zero"), "whether the port is taken shows at run time"),
    ("torchrun's options, PET_*", ("pet-variable", "rank-missing", "rendezvous-missing", "launcher-alone"), ""),
    ("is_host guesses from host names", (), "whether names and interfaces agree is a fact of the site: its profile adds is_host"),
    ("MASTER_ADDR", ("nodelist-cut", "nodelist-unquoted", "scontrol-in-container", "hostname-address", "rendezvous-local"), ""),
    ("MASTER_PORT", ("fixed-port", "random-in-task", "array-port"), ""),
    ("--rdzv_id equal on all nodes", ("random-in-task",), "the name of a variable in place of its value is equal too, and harmless"),
    (
        "how #SBATCH lines are read",
        ("directive-after-command", "directive-indented", "directive-case", "directive-space", "directive-misspelt", "directive-variable",
         "directive-continued", "directive-hash", "directive-quote", "dos-line-ends", "no-shebang", "unknown-option", "site-option",
         "not-an-option", "blank-around-equals", "short-option-equals", "option-without-value", "flag-with-value"),
        "",
    ),
    ("precedence of options", ("directive-twice",), "SBATCH_* of the caller stand in no text: hpctrain submit takes them out"),
    ("--export", ("export-drops-environment",), ""),
    ("nested submission leaks SLURM_*", (), "it depends on which of them the inner job contradicts; most chains of jobs are fine"),
    ("job names", ("job-name-in-path", "directive-quote"), ""),
    ("limits", ("script-too-large", "array-size"), "the site's own values: hpctrain check"),
    ("the first line", ("no-shebang", "sh-shebang"), "whether a site needs -l is in its profile"),
    ("strictness, pipes, wait", ("nounset-before-activation", "pipefail-missing", "wait-without-pid", "wait-ends-script"),
     "set -e in front of modules is good practice as often as not"),
    ("PYTHONUNBUFFERED", ("pythonbuffered", "srun-unbuffered"), ""),
    ("conda", ("source-activate", "conda-not-initialised"), ""),
    ("the log's directory", ("log-directory-too-late",), "whether a relative directory exists where sbatch is typed stands in no text"),
    ("log patterns", ("array-output", "requeue-truncates", "directive-variable", "output-pattern"), ""),
    ("caches", ("shared-compiler-cache",), "a cache that is not set, and a /tmp in memory, are facts of the site"),
    ("OMP_NUM_THREADS", ("slurm-variable-unset",), "the best number depends on the node and the data loaders"),
    ("ulimit -l", (), "limits come from the shell where sbatch is typed"),
    ("--signal, traps", ("signal-not-to-batch", "trap-in-foreground", "invalid-signal"), ""),
    ("USR1 to launchers", ("usr1-kills-launcher", "kill-first-node"), ""),
    ("KillWait", (), "a value of the site"),
    ("requeue", ("restart-count-unset", "requeue-truncates", "requeue-whole-array"), ""),
    ("-K and --wait", ("kill-on-bad-exit-value",), "srun without -K is right where KillOnBadExit=1 or the launcher ends its peers"),
    ("exit codes", (), "they are there after the job: hpctrain explain"),
    ("sbatch --parsable", ("sbatch-output-parsed",), ""),
    ("--json of Slurm's commands", (), "whether the plugin is built is a fact of the site"),
    ("fields of sacct", (), "whether a site tracks them is a fact of the site"),
    ("widths of sinfo -O", ("format-widths",), ""),
    ("dependencies", (), "whether the first job is still known shows at run time"),
    ("heterogeneous jobs", ("packjob", "hetjob-first-component"), ""),
    ("polling", ("polling-loop",), ""),
    ("names of NCCL variables", ("old-nccl-name", "flight-recorder-off"), ""),
    ("network interfaces", ("gloo-interface",), "whether an interface exists is a fact of the node: hpctrain doctor --job"),
]  # fmt: skip
#: Rules that come from failures of trainings rather than from the list above.
FROM_FAILURES = {
    "unreadable-shell", "gpus-is-total", "cpus-per-gpu-and-task", "invalid-time", "missing-time", "mail-user-without-type",
    "launcher-without-srun", "nnodes-mismatch", "num-processes", "more-processes-than-gpus", "accelerate-one-process", "mpirun-in-srun",
    "script-directory", "dotenv-xargs", "environment-in-log", "secret-in-script",
}  # fmt: skip


def test_there_are_47_pitfalls() -> None:
    assert len(PITFALLS) == 47


@pytest.mark.parametrize("pitfall", PITFALLS, ids=lambda pitfall: pitfall[0])
def test_each_pitfall_is_seen_or_cannot_be_seen(pitfall: tuple[str, tuple[str, ...], str]) -> None:
    _, ids, why_not = pitfall
    assert ids or why_not
    assert set(ids) <= set(IDS)


@pytest.mark.parametrize("id_", sorted({id_ for _, ids, _ in PITFALLS for id_ in ids} - {"script-too-large"}))
def test_each_rule_of_a_pitfall_fires_on_the_wrong_script_of_its_name(id_: str) -> None:
    files = [
        file for file in corpus.WRONG if file.stem == id_ or file.stem.startswith(f"{id_}-")
    ]  # script-too-large, of 4 MiB, is made in test_corpus.py
    assert files, f"write tests/corpus/lint/wrong/{id_}.sbatch"
    assert id_ in {one.id for file in files for one in lint(corpus.text_of(file), file.name)}


def test_each_rule_has_an_origin() -> None:
    assert {id_ for _, ids, _ in PITFALLS for id_ in ids} | FROM_FAILURES == set(IDS)
