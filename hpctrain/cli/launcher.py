"""What submits the scripts of a launch one by one, records each, and knows those that an interrupted call has sent."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.cli.job_scripts import Script
from hpctrain.errors import HpctrainError
from hpctrain.runs import launch
from hpctrain.scheduler import batch_script, ledger
from hpctrain.scheduler.base import Submission
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse import directives
from hpctrain.scheduler.slurm import SlurmScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One script of a choice, with what it stands for.

    Attributes:
        path: what the user calls it; what is submitted is `text`, from a copy that is the launch's own.
    """

    path: Path
    text: str
    title: str
    is_array: bool
    made: Script | None
    array: str | None
    offset: int
    stage: str | None
    dependencies: tuple[tuple[str, str], ...]
    links: int


class Launcher:
    """Submits scripts under one tag.

    Attributes:
        made: what was submitted so far, or by an interrupted call with which this one goes on.
        call: the word that all of these have in common.
    """

    def __init__(self, scheduler: SlurmScheduler | LocalScheduler, runs: Path, tag: str, *, resend: bool = False) -> None:
        self.scheduler, self.runs, self.tag, self.resend = scheduler, runs, tag, resend
        self.made: list[Submission] = []
        self.call = uuid.uuid4().hex[:16]

    def submit(
        self, path: Path, *, script: str | None, config: str | None = None, stage: str | None = None,
        array: str | None = None, offset: int = 0, dependency: str | None = None, shown: Path | None = None,
    ) -> Submission:  # fmt: skip
        """Submit a script and record it; `array` is None where the script's own directive holds, `shown` is what the user calls the file.

        Raises:
            HpctrainError: the scheduler refused it, or did not answer; what is not known is recorded too.
        """
        text, found = batch_script.read(path)
        said: dict[str, Any] = {"arguments": (self.tag,), "dependency": dependency, "array": array, "shown": shown}
        values = directives.last_values(found)
        record = launch.Submission(
            token=uuid.uuid4().hex[:16], argv=("bash", str(path), self.tag), at=time.time(), scheduler=self.scheduler.name,  # type: ignore[arg-type]
            script=script, config=config, array=array or values.get("array"), offset=offset, dependency=dependency, stage=stage,
            command=tuple(sys.argv[1:]), call=self.call,
        )  # fmt: skip
        try:
            submission = self.scheduler.submit(path, resend=self.resend, **said)
        except (HpctrainError, KeyboardInterrupt) as error:
            for entry in self._unanswered(text):
                self._add(replace(record, token=entry.token, at=entry.at), entry, path, values)
            if isinstance(error, HpctrainError):
                _say_those_before(error, self.made, self.tag)
            raise
        sent = ledger.by_job_id(submission.job_id) if isinstance(self.scheduler, SlurmScheduler) else None
        record = replace(record, job_id=submission.job_id, cluster=submission.cluster)
        self.made.append(submission)
        try:
            if sent is None:
                launch.add_submission(self.runs, self.tag, record)
            else:
                self._add(replace(record, token=sent.token, at=sent.at), sent, path, values)
        except OSError as error:
            raise HpctrainError(
                f"job {submission.job_id} was submitted, and the record of it cannot be written: {error.strerror}",
                details=(str(error.filename),), fix=f"df -h {self.runs}; to stop the job: hpctrain cancel {submission.job_id}",
            ) from error  # fmt: skip
        return submission

    def chain(self, first: Submission, path: Path, links: int, **said: Any) -> list[Submission]:
        """Submit the jobs that go on where the first one stops, each after the one before, whatever came of that."""
        made = [first]
        for _ in range(links):
            made.append(self.submit(path, dependency=f"afterany:{made[-1].job_id}", **said))
        return made

    def earlier(self, part: Part) -> list[Submission]:
        """Return the jobs of a part that an interrupted call has submitted, and that its user has not been told of; [] without such a call.

        Raises:
            SchedulerError: one of them may still arrive.
        """
        text, found = part.text, batch_script.parse(part.text, part.path)
        tokens = {entry.token for entry in self._unanswered(text)}
        notes: dict[str, Submission] = {}
        record = self._record_of(part, text)
        while isinstance(self.scheduler, SlurmScheduler) and self._unanswered(text):
            submission = self.scheduler.earlier(text, (self.tag,), resend=self.resend)
            if submission is None:
                break
            notes[submission.job_id] = submission
            entry = ledger.by_job_id(submission.job_id)
            if entry is not None:
                now = replace(record, token=entry.token, at=entry.at, job_id=submission.job_id, cluster=submission.cluster)
                self._add(now, entry, part.path, directives.last_values(found))
        for token in tokens - {entry.token for entry in ledger.entries()}:  # given up
            launch.drop_submission(self.runs, self.tag, token)
        sent = [each for each in self._recorded() if each.job_id is not None and each.call == self.call and each.stage == part.stage]
        note = "{} was submitted by the earlier call, and is not sent again"
        return [
            notes.get(str(each.job_id))
            or Submission(job_id=str(each.job_id), cluster=each.cluster, notes=(note.format(f"job {each.job_id}"),))
            for each in sent
            if self._text_of(each) == text
        ]

    def go_on_with_call(self, parts: Sequence[Part]) -> bool:
        """Take over the call that was interrupted while it submitted these parts; say whether there was one."""
        tokens = {entry.token for part in parts for entry in self._unanswered(part.text)}
        if not tokens:
            return False
        recorded = self._recorded()
        mine = [each for each in recorded if each.token in tokens] or recorded
        self.call = mine[-1].call if mine else self.call
        return True

    def _record_of(self, part: Part, text: str) -> launch.Submission:
        scripts = [each for each in self._recorded() if self._text_of(each) == text]
        return launch.Submission(
            token="", argv=(), at=0.0, scheduler="slurm", script=scripts[-1].script if scripts else part.path.name,
            config=scripts[-1].config if scripts else None, array=part.array, offset=part.offset, stage=part.stage,
            command=tuple(sys.argv[1:]), call=self.call,
        )  # fmt: skip

    def _add(self, record: launch.Submission, entry: ledger.Entry, path: Path, values: dict[str, str | None]) -> None:
        """Record a submission of Slurm's; of one that is known, its job alone: its words are those of an earlier call."""
        known = next((each for each in self._recorded() if each.token == entry.token), None)
        if known is not None:
            launch.add_submission(self.runs, self.tag, replace(known, job_id=record.job_id, cluster=record.cluster))
        elif isinstance(self.scheduler, SlurmScheduler):
            orders = dict(order.removeprefix("--").split("=", 1) for order in entry.orders)
            said: dict[str, Any] = {"arguments": entry.arguments, "dependency": orders.get("dependency"), "array": orders.get("array")}
            array = said["array"] or values.get("array")
            argv = tuple(self.scheduler.sbatch_argv(path, entry, values, **said))
            launch.add_submission(self.runs, self.tag, replace(record, argv=argv, dependency=said["dependency"], array=array))

    def _unanswered(self, text: str) -> list[ledger.Entry]:
        if not isinstance(self.scheduler, SlurmScheduler):
            return []
        return [entry for entry in ledger.unanswered_of(text) if entry.arguments == (self.tag,)]

    def _recorded(self) -> tuple[launch.Submission, ...]:
        whole = launch.load(self.runs, self.tag)
        return whole.submissions if whole is not None else ()

    def _text_of(self, each: launch.Submission) -> str | None:
        path = launch.launch_dir(self.runs, self.tag) / "scripts" / str(each.script)
        return batch_script.read(path)[0] if each.script is not None and path.is_file() else None


def _say_those_before(error: HpctrainError, made: Sequence[Submission], tag: str) -> None:
    """Add to an error what was submitted before it, and how to go on with the rest."""
    if made:
        ids = ", ".join(each.job_id for each in made)
        error.details = (*error.details, f"submitted before that for {tag}, and still there: {ids}; the rest is not")
        error.fix = f"{error.fix}; then: hpctrain resubmit {tag}"
