"""Shows the viewer as a Jupyter widget (extra "notebook"): the same page, with live answers to what-if questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import TensorGraphsError, UsageError
from .page import explorer_data, widget_parts

if TYPE_CHECKING:
    from .explorer import Explorer

ADVANCE_SECONDS = 1.0  # for answers computed before the widget opens; others are asked live
MOST_SELECTORS = 100  # in one question of a widget


def widget(explorer: Explorer) -> Any:
    """Jupyter widget (anywidget) that shows an explorer. Raises UsageError without the package anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise UsageError("the widget needs anywidget", hint="pip install 'tensor-graphs[notebook]'") from None
    script, style = widget_parts()

    class EGraphWidget(anywidget.AnyWidget):  # type: ignore[misc]
        """Data of the viewer, and answers to its questions."""

        _esm = script
        _css = style
        data = traitlets.Bytes().tag(sync=True)

        def __repr__(self) -> str:
            return f"viewer of the e-graph of {explorer.graph.name[:80]}: {len(explorer.view)} e-nodes"

    made = EGraphWidget(data=explorer_data(explorer, seconds=ADVANCE_SECONDS))
    made.on_msg(lambda _, message, buffers: made.send(answer(explorer, message)))
    return made


def answer(explorer: Explorer, message: Any) -> dict[str, Any]:
    """Answer to a message of the widget.

    The message is {"id", "forbid": [selectors], "pin": [selectors], "cost": {selector: µs}}. The answer has its "id"
    and the fields of `WhatIf.to_json`, or "error" with a text if the question cannot be answered.
    """
    number = message.get("id") if isinstance(message, dict) else None
    try:
        found = explorer.what_if(_selectors(message, "forbid"), _selectors(message, "pin"), _costs(message))
        return {"id": number, **found.to_json()}
    except TensorGraphsError as error:
        return {"id": number, "error": error.message + (f" ({error.hint})" if error.hint else "")}


def _selectors(message: Any, name: str) -> list[str]:
    found = message.get(name, []) if isinstance(message, dict) else None
    if not isinstance(found, list) or len(found) > MOST_SELECTORS or not all(isinstance(s, str) for s in found):
        raise UsageError(f"{name} must be a list of selectors", where="widget")
    return found


def _costs(message: Any) -> dict[str, float]:
    found = message.get("cost", {})
    if (
        not isinstance(found, dict)
        or len(found) > MOST_SELECTORS
        or not all(type(v) in (int, float) for v in found.values())
    ):
        raise UsageError("cost must map selectors to times in µs", where="widget", hint="cost k17=2.5")
    return found


__all__ = ["answer", "widget"]
