"""Raw data to a tokenised dataset: pieces tokenised by all cores, examples divided and packed, shards written, the result put in place.

What is finished stays: the same request goes on from it, however the command before ended. The result is the same for any number of
processes and any number of interruptions. Prints nothing.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain import __version__
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.preparation import manifest, outcome, provenance, shards, sources, stages, work_folder, workers
from hpctrain.preparation.manifest import Manifest
from hpctrain.preparation.outcome import Summary
from hpctrain.preparation.request import Request, changed, pieces_digest, rows_digest, understand
from hpctrain.preparation.stages import Progress, Site
from hpctrain.runs import files


def prepare(request: Request, *, progress: Callable[[Progress], None], say: Callable[[str], None] = lambda _: None) -> Summary:
    """Prepare the dataset.

    Args:
        request: what is asked for.
        progress: called now and then.
        say: called with each sentence about what was found and decided.

    Raises:
        UsageError: the request cannot be done as it is; nothing was written.
        HpctrainError: a disk is full, a worker was killed, a file changed; what is finished is kept.
        OSError: a file system refuses otherwise.
    """
    began = time.monotonic()
    refuse_to_lose(request.target)
    workers.warm_up(trust_remote_code=request.trust_remote_code)
    meaning = understand(request)
    for note in meaning.notes:
        say(note)
    there = manifest.read(request.target)
    if there is not None and there.settings.get("request") == rows_digest(meaning):
        return Summary(folder=request.target, manifest=there, seconds=time.monotonic() - began, there=True)
    if there is not None and not request.force:
        raise UsageError(
            f"{request.target} is there, prepared from other data or with other options",
            fix=f"--to {shell.quote(f'{request.target}_2')}, or --force to replace what is there",
        )
    with work_folder.held(request.target) as folder:
        pieces = sources.pieces(meaning.sources, target_bytes=meaning.target_bytes)
        site = Site(
            meaning=meaning,
            folder=folder,
            pieces=pieces,
            processes=max(1, min(request.workers or workers.count(), len(pieces))),
            progress=progress,
            say=say,
            memory=provenance.Memory(),
        )
        working = time.monotonic()
        with _explained(site):
            described = _work(site)
            _put_in_place(folder, request.target)
        return Summary(
            folder=request.target,
            manifest=described,
            seconds=time.monotonic() - began,
            working=time.monotonic() - working,
            tokenised=site.fresh,
            tokenising=site.seconds,
            pieces=len(site.pieces),
            reused=site.reused,
            workers=site.processes,
            peak_mib=site.memory.peak_mib,
        )


def refuse_to_lose(target: Path) -> None:
    """Refuse a target that holds what `hpctrain prepare` did not make, and one that Arrow cannot open.

    Raises:
        UsageError: there is such a thing.
    """
    try:
        str(target.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(f"the name of the folder to make is not UTF-8: {str(target)!a}", fix="--to data/my_dataset") from None
    if not target.exists() and not target.is_symlink():
        return
    other = f"--to {shell.quote(f'{target}_2')}"
    if not target.is_dir() or target.is_symlink():
        raise UsageError(f"{target} is there, and is no folder", fix=other)
    if next(target.iterdir(), None) is not None and manifest.read(target) is None:
        raise UsageError(f"{target} is there, and `hpctrain prepare` did not make it", fix=other)


def _work(site: Site) -> Manifest:
    """Do all that is not finished, and return the manifest, which is written then."""
    meaning = site.meaning
    if site.folder.begin(pieces=pieces_digest(meaning), rows=rows_digest(meaning)) == "stale":
        site.say(f"{site.folder.path} was left by another request, and is begun anew")
    with provenance.hashing(meaning) as listed:
        with workers.pool(site.processes, meaning.recipe) as executor:
            stages.tokenise(site, executor)
            division, repeated = stages.divide(site)
            made = stages.write(site, executor, division)
        described = _manifest(site, made, repeated, listed())
    if different := changed(meaning):
        why = "what was made of it is neither the old file nor the new one"
        raise HpctrainError(f"{different[0]} was changed while it was read", details=(why,), fix="the same command again")
    splits = {name: len(split.digests) for name, split in made.items()}
    shards.describe(site.folder.result, splits, packed=site.capacity is not None, digest=described.digest)
    files.write_text(site.folder.result / manifest.NAME, described.to_json())
    return described


def _manifest(site: Site, made: Mapping[str, stages.Made], repeated: int, listed: tuple[dict[str, Any], ...]) -> Manifest:
    meaning, request, tally = site.meaning, site.meaning.request, site.total()
    recipe, encoder = meaning.recipe, meaning.encoder
    if repeated:
        tally.dropped[stages.DUPLICATE] = repeated
    return Manifest(
        sources=listed,
        form=recipe.columns.form,
        columns=dict(recipe.columns.names),
        loss_on=recipe.loss_on,
        tokenizer=meaning.fingerprint,
        tokenizer_name=request.tokenizer_name or str(request.tokenizer),
        template=meaning.template,
        vocabulary=encoder.vocabulary,
        max_length=request.max_length,
        packed=request.pack,
        splits={name: outcome.split_of(split.counts, capacity=site.capacity) for name, split in made.items()},
        rows=tally.read,
        dropped=tally.dropped,
        dropped_first=tally.first,
        truncated=tally.truncated,
        context_turns=tally.context_turns,
        specials=tally.specials,
        specials_first=tally.specials_first,
        seed=request.seed,
        digest=shards.combined({name: split.digests for name, split in made.items()}),
        settings={
            "request": rows_digest(meaning),
            "truncation": request.truncation,
            "template": None if request.template is None else str(request.template),
            "template_options": dict(request.template_options),
            "eos": request.eos,
            "system": request.system,
            "as_chat": request.as_chat,
            "unit": request.unit,
            "validation": request.validation,
            "dedupe": request.dedupe,
        },
        version=__version__,
    )


def _put_in_place(folder: work_folder.WorkFolder, target: Path) -> None:
    """Rename the result to its name; what hpctrain made there before goes away after that."""
    old = folder.path / "old"
    shutil.rmtree(old, ignore_errors=True)
    refuse_to_lose(target)  # somebody may have put something there meanwhile
    if target.exists():
        target.rename(old)
    folder.result.rename(target)
    work_folder.remove(folder)


@contextmanager
def _explained(site: Site) -> Iterator[None]:
    """Say, of what can happen on the way, what is kept and what to do."""
    try:
        yield
    except BrokenProcessPool as error:
        raise HpctrainError(
            "a worker was killed, most likely for want of memory",
            details=(f"{site.processes} workers of some 500 MB each ran; {_kept(site)}",),
            fix=f"the same command with --workers {max(1, site.processes // 2)}",
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = site.folder.path.parent
        raise HpctrainError(
            f"no space is left in {where} ({(error.strerror or '').lower()})",
            details=(f"{_kept(site)}; pieces and result take 12 bytes for each token",),
            fix=f"df -h {shell.quote(where)}, make space, then the same command again",
        ) from error
    except KeyboardInterrupt:
        site.say(f"interrupted: {_kept(site)}; the same command goes on from there")
        raise


def _kept(site: Site) -> str:
    return f"{len(site.tallies)} of {len(site.pieces)} pieces are finished and kept"
