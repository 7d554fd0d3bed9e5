"""The batch that made a training's gradients NaN: kept by reference while the training runs, written once when it happens, looked at after.

    python -m hpctrain.training.bad_batch runs/RUN_ID/bad-batch/step-120

Each rank writes rank-N.json (what a person looks at) and rank-N.pt (token ids, labels, random numbers: plain tensors and values, so that
reading it runs nothing). What one step costs is a few references, and the state of the random numbers (some kilobytes on the host).
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.runs import files, layout

STEPS = 2
"""Steps that are kept: the gradient norm of a GPU is looked at one step later."""
MAX_TOKENS = 4_000_000
"""Tokens that a rank writes at most: 32 MB. Micro batches with a loss that is not finite come first."""
MAX_EXAMPLES = 64
"""Examples whose text rank-N.json shows."""
MAX_TEXT = 2000
SEARCH_S = 30.0
"""How long the rows of the dataset are searched for those of the batch, in seconds."""
_KEPT = ("input_ids", "labels", "attention_mask", "position_ids")


@dataclass
class Step:
    """One optimizer step of this rank: its micro batches, their losses, and the random numbers before it. Losses are still on the GPU."""

    number: int
    random: dict[str, Any]
    batches: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)


class LastBatches:
    """Holds the micro batches of the last two steps, without copying any."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=STEPS)

    def keep(self, step: int, inputs: Mapping[str, Any]) -> None:
        """Note a micro batch of a step, before it is computed."""
        if not self._steps or self._steps[-1].number != step:
            self._steps.append(Step(step, _random_state()))
        self._steps[-1].batches.append({name: inputs[name] for name in _KEPT if inputs.get(name) is not None})

    def keep_loss(self, loss: Any) -> None:
        """Note the loss of the last micro batch."""
        if self._steps:
            self._steps[-1].losses.append(loss)

    def of(self, step: int) -> Step | None:
        """Return a step that is still held."""
        return next((each for each in self._steps if each.number == step), None)

    def drop(self) -> None:
        """Let go of all."""
        self._steps.clear()


def _random_state() -> dict[str, Any]:
    import torch

    state: dict[str, Any] = {"cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is written beside the batch.

    Attributes:
        rank, world: this process, and how many there are.
        norm: the gradient norm, where this rank knows it.
        tokenizer: decodes; None where there is none.
        dataset: the training split as it is trained on, in which the rows are looked up; None for no look.
        training: options that decide what a step does.
    """

    rank: int
    world: int
    norm: float | None = None
    tokenizer: Any = None
    dataset: Any = None
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Example:
    """One example of a micro batch, without padding, and the row of the dataset where it was found."""

    micro_batch: int
    ids: list[int]
    labels: list[int]
    row: int | None = None


def write(folder: Path, step: Step, about: About) -> None:
    """Write what this rank has of a step into `folder`, which may be there already: of other ranks, or of an earlier failure.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    losses = [_number(loss) for loss in step.losses]
    order = sorted(range(len(step.batches)), key=lambda n: (n >= len(losses) or _finite(losses[n]), n))
    chosen: list[int] = []
    room = MAX_TOKENS
    for number in order:
        size = int(step.batches[number]["input_ids"].numel())
        if size > room and chosen:
            continue
        room -= size
        chosen.append(number)
    batches = {number: {name: _cut(tensor) for name, tensor in step.batches[number].items()} for number in sorted(chosen)}
    examples = [Example(number, ids, labels) for number, batch in batches.items() for ids, labels in _examples(batch)]
    for example, row in zip(examples, _rows(about.dataset, [example.ids for example in examples]), strict=True):
        example.row = row
    temporary = folder / f".rank-{about.rank}.pt"
    torch.save({"schema": 1, "step": step.number, "batches": batches, "losses": losses, "random": step.random}, temporary)
    temporary.replace(folder / f"rank-{about.rank}.pt")
    files.write_json(folder / f"rank-{about.rank}.json", _summary(step, about, losses, list(batches), examples))


def _summary(step: Step, about: About, losses: list[float], written: list[int], examples: list[Example]) -> dict[str, Any]:
    bad = {number for number, loss in enumerate(losses) if not _finite(loss)}
    return {
        "schema": 1,
        "step": step.number,
        "rank": about.rank,
        "world_size": about.world,
        "grad_norm": _word(about.norm),
        "losses": [_word(loss) for loss in losses],
        "micro_batches": len(step.batches),
        "micro_batches_written": written,
        "training": dict(about.training),
        "examples": [
            {
                "micro_batch": each.micro_batch,
                "row": each.row,
                "tokens": len(each.ids),
                "trained": sum(label != -100 for label in each.labels),
                "text": _text(about.tokenizer, each.ids),
            }
            for each in sorted(examples, key=lambda each: each.micro_batch not in bad)[:MAX_EXAMPLES]
        ],
    }


def _cut(tensor: Any) -> Any:
    import torch

    found = tensor.detach().reshape(tensor.shape[0], -1)[:, : max(1, MAX_TOKENS // max(1, tensor.shape[0]))].cpu()
    return found.to(torch.int32) if found.dtype == torch.int64 else found


def _examples(batch: Mapping[str, Any]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield ids and labels of the examples of a micro batch, without padding; of rows laid end to end, each where its positions begin."""
    labels = batch.get("labels", batch["input_ids"])
    for row in range(batch["input_ids"].shape[0]):
        ids, wanted = batch["input_ids"][row].tolist(), labels[row].tolist()
        if "attention_mask" in batch:
            there = batch["attention_mask"][row].tolist()
            ids = [each for each, keep in zip(ids, there, strict=True) if keep]
            wanted = [each for each, keep in zip(wanted, there, strict=True) if keep]
        begins = [0]
        if "position_ids" in batch and "attention_mask" not in batch:
            begins = [at for at, position in enumerate(batch["position_ids"][row].tolist()) if position == 0] or [0]
        for begin, end in itertools.pairwise([*begins, len(ids)]):
            yield ids[begin:end], wanted[begin:end]


def _rows(dataset: Any, examples: list[list[int]]) -> list[int | None]:
    """Return the rows of the dataset that begin with the examples; None where there is none, or the search took too long."""
    found: list[int | None] = [None] * len(examples)
    if dataset is None or not examples:
        return found
    head = min((len(example) for example in examples if example), default=0)
    head = min(head, 16)
    wanted: dict[tuple[int, ...], list[int]] = {}
    for number, example in enumerate(examples):
        wanted.setdefault(tuple(example[:head]), []).append(number)
    until, row = time.monotonic() + SEARCH_S, 0
    try:
        for batch in dataset.select_columns("input_ids").with_format(None).iter(1000):
            for ids in batch["input_ids"]:
                for number in wanted.get(tuple(ids[:head]), ()):
                    if found[number] is None and ids[: len(examples[number])] == examples[number]:
                        found[number] = row
                row += 1
            if time.monotonic() > until:
                break
    except Exception:  # a dataset of another kind; the batch itself is what counts
        return found
    return found


def _number(loss: Any) -> float:
    return float(loss.float().item() if hasattr(loss, "item") else loss)


def _finite(loss: float) -> bool:
    return math.isfinite(loss)


def _word(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or math.isfinite(value) else str(value)


def _text(tokenizer: Any, ids: list[int]) -> str | None:
    try:
        text = str(tokenizer.decode(ids[: MAX_TEXT * 2]))
    except Exception:  # ids beyond the vocabulary may be the very reason
        return None
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


# -- looking -----------------------------------------------------------------------------------------------------------


def lines(folder: Path) -> list[str]:
    """Return, for a person, what the ranks wrote into a folder.

    Raises:
        UsageError: nothing that can be read is there.
    """
    found = [content for path in sorted(folder.glob("rank-*.json")) if (content := files.read_json(path)) is not None]
    found.sort(key=lambda content: int(content.get("rank", 0)))
    if not found:
        raise UsageError(
            f"there is no bad batch in '{folder}'", fix=f"ls {shell.quote(folder)}; it is written when a gradient is not finite"
        )
    first = found[0]
    text = [
        f"step {first['step']}: the gradient norm is {first['grad_norm']}; {len(found)} of {first['world_size']} ranks wrote their batch"
    ]
    for content in found:
        bad = [number for number, loss in enumerate(content["losses"]) if not isinstance(loss, int | float)]
        word = f"the loss of micro batch {', '.join(map(str, bad))} is not finite" if bad else "all losses are finite"
        text.append(f"rank {content['rank']}: losses {' '.join(_short(loss) for loss in content['losses'])}: {word}")
        shown = [each for each in content["examples"] if each["micro_batch"] in bad] or content["examples"]
        for each in shown:
            row = "" if each["row"] is None else f", row {each['row']} of the training split"
            text.append(f"  micro batch {each['micro_batch']}{row}: {each['tokens']} tokens, {each['trained']} trained")
            text.append(f"    {json.dumps((each['text'] or '')[:300], ensure_ascii=False)}")
    return text


def _short(loss: float | str) -> str:
    return loss if isinstance(loss, str) else f"{loss:.4g}"


def main(argv: list[str] | None = None) -> int:
    """Show a folder; `--json` shows what the ranks wrote as one object."""
    words = sys.argv[1:] if argv is None else argv
    as_json, names = "--json" in words, [word for word in words if word != "--json"]
    if len(names) != 1 or names[0] in {"-h", "--help"}:
        sys.stdout.write("usage: python -m hpctrain.training.bad_batch FOLDER [--json]\n")
        return 0 if names and names[0] in {"-h", "--help"} else 2
    folder = Path(names[0])
    if not next(folder.glob("rank-*.json"), None):  # RUN_DIR/bad-batch, or the run's directory
        inner = sorted([*folder.glob("step-*"), *(folder / layout.BAD_BATCH).glob("step-*")], key=lambda path: path.stat().st_mtime)
        folder = inner[-1] if inner else folder
    try:
        text = lines(folder)
    except HpctrainError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    if as_json:
        text = [json.dumps({"schema": 1, "ranks": [files.read_json(path) for path in sorted(folder.glob("rank-*.json"))]})]
    sys.stdout.write("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
