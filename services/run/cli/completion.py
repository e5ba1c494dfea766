"""`cutline completion`: the script that completes commands in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: cutline completion bash > ~/.local/share/bash-completion/completions/cutline
    zsh:  cutline completion zsh > ~/.zfunc/_cutline   (a folder of $fpath)
    fish: cutline completion fish > ~/.config/fish/completions/cutline.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    root = click.get_current_context().find_root()
    click.echo(made(root.command, {}, "cutline", "_CUTLINE_COMPLETE").source())


COMMANDS = (completion,)
