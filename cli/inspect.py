"""``radixtide inspect``: what happened in a run, from its journal."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer


def inspect(
    journal: Annotated[Path, typer.Argument(help="A journal that a run has written.")],
    diagram: Annotated[
        bool, typer.Option("--diagram", help="Show who sends what to whom, as a sequence diagram.")
    ] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show one line for each thing that happened.")
    ] = False,
    node: Annotated[
        int | None,
        typer.Option(min=0, help="Only messages that name this node.", show_default=False),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            metavar="RID",
            help="Only messages that name this request, and what they cause.",
            show_default=False,
        ),
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option(help="Only what this actor sends or gets.", show_default=False),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Only messages of this type, faults of this kind, or records of this kind: "
            "Lock, drop, fault, crash.",
            show_default=False,
        ),
    ] = None,
    from_step: Annotated[
        int | None, typer.Option("--from", min=0, help="From this step on.", show_default=False)
    ] = None,
    to_step: Annotated[
        int | None,
        typer.Option("--to", min=0, help="Up to this step, included.", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Most lines of a diagram or timeline; 0: all.")
    ] = 200,
    step: Annotated[
        int | None,
        typer.Option(
            min=0, help="With --tree: replay up to the end of this step.", show_default=False
        ),
    ] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="Replay the run up to --step, and print the tree there.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the diagram to this .html file.", show_default=False),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Counts, or a tree, as one JSON object; with --timeline or --diagram one object a "
            "line.",
        ),
    ] = False,
) -> None:
    """Show the journal of a run: counts, a timeline, or a sequence diagram, of all or a part.

    A journal that ends in the middle of a record is shown up to there. Exit status: 0; 1 for a file
    that is no journal or is damaged, or a replay that differs; 2 for a wrong use of the command,
    and for a node, request, actor, kind or step that the journal does not have.
    """
    if tree != (step is not None):
        raise typer.BadParameter("give both, as in --step 120 --tree", param_hint="--step, --tree")
    if diagram and timeline:
        raise typer.BadParameter("choose one of them", param_hint="--diagram, --timeline")
    if from_step is not None and to_step is not None and from_step > to_step:
        raise typer.BadParameter(
            f"{from_step} is behind --to {to_step}: nothing is between", param_hint="--from"
        )
    if step is not None:
        others = {
            "--diagram": diagram,
            "--timeline": timeline,
            "--node": node is not None,
            "--request": request is not None,
            "--actor": actor is not None,
            "--kind": kind is not None,
            "--from": from_step is not None,
            "--to": to_step is not None,
            "--html": html is not None,
        }
        given = ", ".join(name for name, there in others.items() if there)
        if given:
            raise typer.BadParameter(
                f"a tree is shown alone; leave out {given}", param_hint="--tree"
            )
        from radixtide.cli.inspect_tree import tree_at

        printed = tree_at(journal, step)
        typer.echo(dumps({"step": step, "tree": printed}) if json else printed)
        return

    from radixtide.cli.inspect_events import Filter

    chosen = Filter(
        node=node, request=request, actor=actor, kind=kind, first=from_step, last=to_step
    )
    if html is not None:
        from radixtide.cli.inspect_run import write_diagram

        write_diagram(journal, chosen, limit, html)
    if diagram or timeline:
        from radixtide.cli.inspect_run import show_events

        show_events(journal, chosen, limit, "diagram" if diagram else "timeline", json)
    elif html is None or json:
        from radixtide.cli.inspect_run import show_counts

        show_counts(journal, chosen, json)


__all__ = ("inspect",)
