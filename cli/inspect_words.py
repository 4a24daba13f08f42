"""Plain data of a journal in few words, for a line on a screen; and as JSON."""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

import msgspec

from radixtide.cli.inspect_events import Event, tag_of
from radixtide.simulation.journal_reading import plain
from radixtide.simulation.journal_records import (
    Answered,
    Audit,
    Copy,
    Crash,
    Delivered,
    Fault,
    Handled,
    Header,
    Note,
    Record,
    Restart,
    Sent,
    StepBegan,
    StepEnded,
    Store,
)

_CODES: Final = {"int64": "q", "int32": "i", "uint64": "Q", "uint8": "B", "bool": "B"}
_FEW: Final = 6
"""Values of a list that are shown before it is cut."""


def numbers(data: dict[str, Any]) -> list[int] | None:
    """Return the values of an array in plain data; None where it has no whole numbers."""
    code = _CODES.get(data["dtype"])
    if code is None:
        return None
    values = array(code, data["data"])
    if sys.byteorder != "little":  # pragma: no cover
        values.byteswap()
    return values.tolist()


def as_runs(values: list[int]) -> str:
    """Return whole numbers in words, three ascending neighbours or more as a range: ``0-15 20``."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    words: list[str] = []
    for first, last in runs:
        words += [f"{first}-{last}"] if last - first > 1 else map(str, range(first, last + 1))
    return " ".join(words[:_FEW]) + (" ..." if len(words) > _FEW else "")


def words_of(data: Any) -> str:
    """Return plain data in few words."""
    if isinstance(data, dict):
        return _words_of_map(data)
    if isinstance(data, list):
        if data and all(one.__class__ is int for one in data):
            return f"[{as_runs(data)}]"
        shown = [words_of(one) for one in data[:_FEW]]
        return f"[{', '.join(shown)}{', ...' if len(data) > _FEW else ''}]"
    if isinstance(data, bytes):
        return f"{data[:6].hex()}({len(data)} bytes)" if len(data) > 8 else data.hex() or "-"
    if isinstance(data, float):
        return f"{data:g}"
    return str(data)


def _words_of_map(data: dict[Any, Any]) -> str:
    if "dtype" in data:
        values = numbers(data)
        if values is None:
            return f"{data['dtype']}({len(data['data'])} bytes)"
        return f"[{as_runs(values)}]"
    if "tokens" in data and "units" in data:
        where = "".join(
            f" {name}={words_of(data[name])}" for name in ("extra_key", "salt") if name in data
        )
        tokens = as_runs(array("q", data["tokens"][: 8 * 64]).tolist())
        return f"key({data['units']}: {tokens}{where})"
    if isinstance(data.get("request"), str) and "input" in data:
        return f"req({data['request']}, {data['input']}+{data['output']})"
    if isinstance(data.get("node"), int):
        if "end" in data:
            return f"n{data['node']}@{data['end']}"
        return f"n{data['node']}"
    if "receipt" in data and "of" in data:
        return f"receipt({data['receipt']} of {words_of(data['of'])})"
    for name in ("object", "actor"):
        if name in data and len(data) == 1:
            return f"<{data[name]}>"
    if "error" in data and "text" in data:
        return f"{data['error']}({data['text']})"
    kind = data.get("type", "")
    parts = [
        f"{name}={words_of(one)}"
        for name, one in data.items()
        # What is 0, false or empty is so in most messages.
        if name != "type" and one not in (0, False, "", [], {}, b"")
    ]
    return f"{kind}({', '.join(parts)})" if kind else f"{{{', '.join(parts)}}}"


def fields_of(data: Any) -> str:
    """Return a message in few words, without its type's name, which stands beside it."""
    words = words_of(data)
    kind = data.get("type", "") if isinstance(data, dict) else ""
    return words[len(kind) + 1 : -1] if kind and words.startswith(f"{kind}(") else words


def _fields(record: Record) -> dict[str, str]:
    """Return what a record says, in words, by the name of the field."""
    raw = {
        name: getattr(record, name)
        for name in record.__struct_fields__
        if isinstance(getattr(record, name), msgspec.Raw)
    }
    return {name: fields_of(plain(one)) for name, one in raw.items() if bytes(one) != b"\xc0"}


def title_of(record: Record) -> str:
    """Return what a record is, in few words, without details."""
    match record:
        case Header():
            return f"journal of seed {record.seed}"
        case Sent() | Delivered() | Handled() | Answered():
            return f"{record.kind} #{record.number}"
        case Fault():
            return f"{record.kind}" + ("" if record.number is None else f" #{record.number}")
        case StepBegan():
            return f"step {record.step}: {record.call}"
        case StepEnded():
            return f"step {record.step} is over"
        case Copy():
            return f"{record.direction} {record.number}: {record.event}"
        case Store():
            return f"{record.operation}: {record.event}"
        case Crash():
            return f"{record.actor} crashed"
        case Restart():
            return f"cache {record.how}"
        case Audit():
            return "audit"
        case Note():
            return record.text


def detail_of(record: Record) -> str:
    """Return what else a record says, in few words."""
    told = _fields(record)
    match record:
        case Handled() | StepEnded():
            if record.error is not None:
                return f"{record.error}: {record.text}"
            return told.get("reply", told.get("answer", ""))
        case Answered():
            return record.error or ""
        case Sent():
            return told.get("message", "")
        case Delivered():
            return "" if record.times == 1 else f"for the {record.times}. time"
        case StepBegan():
            return f"scheduler {record.scheduler}  {told.get('args', '')}".rstrip()
        case Fault():
            return "  ".join(told.values())
        case Copy():
            return record.error or ""
        case Store():
            return f"{record.pages} pages" + (f": {record.error}" if record.error else "")
        case Crash():
            down = "; it stays down" if record.down else ""
            return f"{record.failures} times so far{down}"
        case Audit():
            return "; ".join(record.violations) or "sound"
        case Note():
            return told.get("detail", "")
    return ""


def route_of(record: Record) -> str:
    """Return from whom to whom, or where."""
    match record:
        case Sent():
            return f"{record.sender} > {record.receiver}"
        case Answered():
            return f"{record.sender} < {record.receiver}"
        case Delivered() | Handled():
            return record.receiver
        case Copy():
            return "copy engine"
        case Store():
            return "store"
        case StepBegan() | StepEnded():
            return f"scheduler {record.scheduler}"
        case Crash():
            return record.actor
    return ""


def as_json(event: Event) -> dict[str, Any]:
    """Return an event as data for JSON: arrays as lists of numbers, other bytes in hex."""
    record = event.record
    fields = {
        name: _for_json(plain(one) if isinstance(one, msgspec.Raw) else one)
        for name, one in msgspec.structs.asdict(record).items()
    }
    return {
        "index": event.index,
        "in_step": event.step,
        "record": tag_of(record),
        **{name: one for name, one in fields.items() if one is not None},
    }


def _for_json(data: Any) -> Any:
    if isinstance(data, dict):
        if "dtype" in data and "data" in data:
            values = numbers(data)
            return values if values is not None and "shape" not in data else _hex(data)
        return {str(name): _for_json(one) for name, one in data.items()} | (
            {"tokens": array("q", data["tokens"]).tolist()}
            if isinstance(data.get("tokens"), bytes) and "units" in data
            else {}
        )
    if isinstance(data, list | tuple):
        return [_for_json(one) for one in data]
    if isinstance(data, bytes):
        return data.hex()
    return data


def _hex(data: dict[str, Any]) -> dict[str, Any]:
    return {name: one.hex() if isinstance(one, bytes) else one for name, one in data.items()}
