"""`hpctrain render`: write the sbatch script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpctrain.cli import script_file
from hpctrain.cli.job_options import JobCommand, Request, job_options, request
from hpctrain.cli.job_scripts import Script, Scripts, scripts_of
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.jobs.arguments import FLAG, Arguments
from hpctrain.jobs.spec import JobSpec


def _missing(spec: JobSpec) -> list[str]:
    """Return what the shipped training will ask for, so that it is not the queue that tells."""
    arguments = Arguments(spec)
    if not arguments.ours or arguments.incomplete:
        return []
    notes = []
    for name in ("model_name_or_path", "dataset_name"):
        folder = arguments.get(name)
        if folder in (None, FLAG):
            notes.append(f"note: task: {spec.task} needs --{name} FOLDER: in config.yaml under training, or behind --")
        elif Path(spec.chdir).is_dir() and not (Path(spec.chdir) / str(folder)).is_dir():
            notes.append(f"note: --{name} {folder} is no folder here")
    return notes


def _meant_for_ours(script: Script) -> list[str]:
    """Return that arguments of config.yaml go to a script that was named on the command line: they were written for another."""
    job, taken = script.job, []
    if job.origins.get(("script",), "") != "--script":
        return []
    for path, where in job.origins.items():
        if path[0] == "training" and len(path) > 1 and not where.startswith("-"):
            taken.append((path[1], where.partition(":")[0]))
    if not taken:
        return []
    names = ", ".join(f"--{name}" for name, _ in taken[:3]) + (f" and {len(taken) - 3} more" if len(taken) > 3 else "")
    return [f"note: {job.spec.script} also gets what {taken[0][1]} has under training: {names}; without them: --config OTHER.yaml"]


def _against_the_site(script: Script) -> list[str]:
    """Return where the script contradicts the profile of its cluster: what `hpctrain check` says first."""
    job = script.job
    if job.cluster is None:
        return []
    from hpctrain.jobs.check import check
    from hpctrain.jobs.check.surroundings import Surroundings

    found = check(job.spec, cluster=job.cluster, live=None, around=Surroundings(), origins=job.origins)
    told = ("directive-forbidden", "directive-required", "gpu-dialect")
    return [f"warning: {finding.what} ({finding.id}); next: hpctrain check" for finding in found if finding.id in told]


def _explain(asked: Request) -> None:
    """Show the script that would be written, line by line, and write nothing.

    Raises:
        UsageError: `--to` says where to write.
    """
    if asked.to is not None:
        fix = f"hpctrain render --to {shell.quote(asked.to)} && hpctrain explain-script {shell.quote(asked.to)}, or leave out --to"
        if asked.to == "-":
            fix = "leave out --to"
        raise UsageError(f"--explain writes no file, so --to {asked.to} has no meaning", fix=fix)
    from hpctrain.cli import explain_script

    made = scripts_of(asked)
    first = made.scripts[0]
    explain_script.show(first.text, str(first.path))
    click.echo(first.spec.layout, err=True)
    if len(made.scripts) > 1:
        click.echo(f"note: this is the first of {len(made.scripts)} scripts", err=True)
    click.echo("nothing was written; next: hpctrain render, with the same options", err=True)


@click.command(cls=JobCommand)
@job_options
@click.option("--force", is_flag=True, help="Replace the file even if hpctrain did not write it, or somebody edited it.")
@click.option("--explain", is_flag=True, help="Write nothing; show the script, with why each line is there.")
@click.pass_context
def command(ctx: click.Context, /, force: bool, explain: bool, **parameters: Any) -> None:
    """Write the sbatch script.

    The values come from these options, else from HPCTRAIN_* variables, else from ./config.yaml, else from your user config. stdout
    is the path of the script, or the script itself with --to -.

    \b
    hpctrain render --nodes 2 --gpus 4 --partition boost_usr_prod --account EUHPC_A06_067
    hpctrain render --script train.py -- --learning_rate 1e-5
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    asked = request(ctx, parameters)
    if explain:
        _explain(asked)
        return
    made = scripts_of(asked)
    first = made.scripts[0]
    if first.path is None:
        script_file.write_tables(made.tables)
        click.echo(first.text, nl=False)
        return
    notes = script_file.write(made, force=force)
    for script in made.scripts:
        click.echo(str(script.path))
        notes += [note for note in [*_missing(script.spec), *_meant_for_ours(script), *_against_the_site(script)] if note not in notes]
    for note in [*notes, *what_runs(made)]:
        click.echo(note, err=True)
    click.echo(f"next: {_next(made)}", err=True)


def what_runs(made: Scripts) -> list[str]:
    """Return what the scripts will run, a line each: the product of nodes and GPUs, how many tasks, which stage after which."""
    lines = []
    for script in made.scripts:
        name = f"{script.path}: " if len(made.scripts) > 1 else ""
        if script.part is not None:
            tasks, _, throttle = script.part.spec.partition("%")
            points = f"{script.part.count} point{'' if script.part.count == 1 else 's'} as array {tasks}"
            points += f" + {script.part.offset}" if script.part.offset else ""
            lines.append(f"{name}{points}{f', {throttle} at a time' if throttle else ''}: {script.spec.layout} each")
        elif script.stage is not None:
            after = " and ".join(
                f"{parent}{'' if kind == 'afterok' else ', however it ends'}" for parent, kind in script.stage.dependencies
            )
            lines.append(f"{name}stage {script.stage.name}{f', after {after}' if after else ''}: {script.spec.layout}")
        else:
            lines.append(f"{name}{f'array {script.spec.array}: ' if script.spec.array else ''}{script.spec.layout}")
    return lines


def _next(made: Scripts) -> str:
    path = shell.quote(made.scripts[0].path)
    if len(made.scripts) > 1:
        return "hpctrain submit, which keeps them together; without Slurm: hpctrain submit --local --wait"
    return f"hpctrain submit {path}, or: sbatch {path}; without Slurm: hpctrain submit --local --wait {path}"
