"""The command that serves the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from tpdpdash.cli.shell import app


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    address: Annotated[
        str, typer.Option(help="Who may connect; this machine only unless told otherwise.")
    ] = "127.0.0.1",
) -> None:
    """The dashboard; prints its address with the start token."""
    from tpdpdash.serve import serve as serve_dashboard

    raise typer.Exit(serve_dashboard(port=port, address=address))
