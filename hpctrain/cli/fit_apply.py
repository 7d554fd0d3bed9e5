"""Writing a layout into a job config: the keys that change, and nothing else; comments, order and quotes stay as they are.

The text is edited where PyYAML says that values stand. What comes of it is read again before it is written: where it would not say what it
should (anchors, merged mappings), nothing is written, and a person is told which lines to write.
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hpctrain import yaml12
from hpctrain.cli.fit_facts import Question
from hpctrain.cli.job_options import Request
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.fit import asked as asking
from hpctrain.fit.layouts import Row
from hpctrain.jobs import shell

KeyPath = tuple[str, ...]
_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")


def apply(request: Request, question: Question, row: Row) -> Iterator[str]:
    """Write the layout of a row into the config, and return the lines of the diff.

    Raises:
        HpctrainError: the file cannot be edited; it is as it was.
    """
    name = request.config or "config.yaml"
    path = Path(os.path.realpath(name))
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"there is no {name} to write into", fix="hpctrain init, then: hpctrain fit --apply") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text", fix=f"file {shell.quote(name)}") from error
    if not path.stat().st_mode & 0o222:  # a rename would write over it all the same
        raise UsageError(f"{name} is read-only; nothing was changed", fix=f"chmod u+w {shell.quote(name)}")
    _refuse_several(question, name)
    changes = changed(question, row, yaml12.load(text, name).data)
    edited = edit(text, changes, name)
    if edited == text:
        yield f"{name} says that already: nothing is changed"
        return
    _replace(path, edited)
    old, new = text.splitlines(keepends=True), edited.splitlines(keepends=True)
    yield from (line.rstrip("\r\n") for line in difflib.unified_diff(old, new, name, f"{name} (written)", n=1))


def _refuse_several(question: Question, name: str) -> None:
    config = question.job.config
    if question.name or config.stages is not None:
        raise UsageError(f"{name} describes several jobs, and a layout belongs to one", fix="hpctrain fit, and write its row into the file")


def changed(question: Question, row: Row, data: dict[str, Any]) -> dict[KeyPath, str]:
    """Return the keys that the file has to say otherwise, or that an option or a variable said in its place."""
    now, then = question.layout, row.layout
    pairs: list[tuple[KeyPath, object, object]] = [
        (("resources", "nodes"), now.nodes, then.nodes),
        (_spelt(data, ("resources", "gpus_per_node"), ("resources", "gpus")), now.gpus_per_node, then.gpus_per_node),
        (("sharding",), now.sharding, then.sharding),
        (("training", "per_device_train_batch_size"), now.micro_batch, then.micro_batch),
        (("training", "gradient_accumulation_steps"), now.accumulation, then.accumulation),
    ]
    found = {}
    for path, before, after in pairs:
        elsewhere = not _in_file(question, path) and question.job.origins.get(path, "default") != "default"
        if before != after or (elsewhere and not question.job.origins.get(path, "").startswith(("profile ", "cluster profile "))):
            found[path] = str(after)
    said = asking.checkpointing_asked(question.options)
    wanted = then.checkpointing == "full"
    if said != wanted and not (said is None and not wanted and now.checkpointing == "off"):
        key = next((name for name in _CHECKPOINTING if name in (data.get("training") or {})), _CHECKPOINTING[0])
        found["training", key] = str(wanted).lower()
    return found


def _spelt(data: dict[str, Any], path: KeyPath, other: KeyPath) -> KeyPath:
    section = data.get(path[0])
    return other if isinstance(section, dict) and other[-1] in section else path


def _in_file(question: Question, path: KeyPath) -> bool:
    return question.job.origins.get(path, "").count(":") >= 2


# -- the text ----------------------------------------------------------------------------------------------------------


def edit(text: str, changes: dict[KeyPath, str], name: str) -> str:
    """Return the text with these values at these paths, which have one or two keys.

    Args:
        text: a YAML mapping.
        changes: path -> the value, as it is to be written: a number, `true`, or a plain word.
        name: of the file, for messages.

    Raises:
        HpctrainError: the text is such that it would not say so afterwards.
    """
    want = yaml12.to_json_value(yaml12.load(text, name).data)
    for path, value in changes.items():
        section = want
        for part in path[:-1]:
            section[part] = section.get(part) or {}
            section = section[part]
        section[path[-1]] = yaml12.to_json_value(yaml12.Plain(value))
    edited = text
    try:
        for path, value in changes.items():
            edited = _set(edited, path, value)
        good = yaml12.to_json_value(yaml12.load(edited, name).data) == want
    except (UsageError, yaml.YAMLError):  # of an alias whose anchor was in the way
        good = False
    if not good:
        lines = tuple(f"{'.'.join(path)}: {value}" for path, value in changes.items())
        raise HpctrainError(
            f"{name} is written in a way that cannot be edited safely; nothing was changed",
            details=lines,
            fix=f"write them into {name}",
        )
    return edited


def _set(text: str, path: KeyPath, value: str) -> str:
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None or not isinstance(root, yaml.MappingNode):
        return _append(text, f"{path[0]}:{_end(text)}  {path[1]}: {value}" if len(path) == 2 else f"{path[0]}: {value}")
    node = root
    for part in path[:-1]:
        child = _child(node, part)
        if child is None:
            return _append(text, f"{part}:{_end(text)}  {path[-1]}: {value}")
        key, found = child
        if isinstance(found, yaml.ScalarNode):  # `training:` with nothing behind it
            return _splice(text, key.end_mark.index, key.end_mark.index, f":{_end(text)}  {path[-1]}: {value}", drop=":")
        node = found
    child = _child(node, path[-1])
    if child is not None:
        _, old = child
        if old.start_mark.index == old.end_mark.index:  # `nodes:` with nothing behind it
            return _splice(text, old.start_mark.index, old.end_mark.index, f" {value}")
        return _splice(text, old.start_mark.index, old.end_mark.index, value)
    return _add(text, node, path[-1], value, top=len(path) == 1)


def _child(node: Any, name: str) -> tuple[Any, Any] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(((key, value) for key, value in node.value if getattr(key, "value", None) == name), None)


def _add(text: str, node: Any, name: str, value: str, *, top: bool) -> str:
    """Add a key behind the last one of a mapping."""
    if node.flow_style:
        if not node.value:
            return _splice(text, node.start_mark.index, node.end_mark.index, f"{{{name}: {value}}}")
        end = node.value[-1][1].end_mark.index
        return _splice(text, end, end, f", {name}: {value}")
    if top:  # behind the last value of its kind, before sections and what is commented there
        scalars = [each for _, each in node.value if isinstance(each, yaml.ScalarNode) and each.end_mark.index > each.start_mark.index]
        last = scalars[-1] if scalars else None
        if last is None:
            return _append(text, f"{name}: {value}")
    else:
        last = node.value[-1][1]
    indent = " " * node.value[0][0].start_mark.column
    line = text.find("\n", _content_end(text, last))
    if line < 0:
        return f"{text}{_end(text)}{indent}{name}: {value}{_end(text)}"
    return _splice(text, line + 1, line + 1, f"{indent}{name}: {value}{_end(text)}")


def _content_end(text: str, node: Any) -> int:
    """Return where a value ends; of a block collection, PyYAML's mark is only at the next token, behind comments and blank lines."""
    if isinstance(node, yaml.MappingNode | yaml.SequenceNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _content_end(text, last[1] if isinstance(last, tuple) else last)
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return len(text[: node.end_mark.index].rstrip())
    return int(node.end_mark.index)


def _splice(text: str, start: int, end: int, new: str, *, drop: str = "") -> str:
    rest = text[end:]
    return text[:start] + new + (rest.removeprefix(drop) if drop else rest)


def _append(text: str, lines: str) -> str:
    end = _end(text)
    return f"{text}{'' if not text or text.endswith(chr(10)) else end}{lines}{end}"


def _end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _replace(path: Path, text: str) -> None:
    """Put the new text in the place of the file: whole or not at all, with the file's permissions."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
