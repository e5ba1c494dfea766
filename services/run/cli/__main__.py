"""`python -m cutline.services.run.cli`: the command `cutline`."""

from __future__ import annotations

from cutline.services.run.cli import main

if __name__ == "__main__":
    main(prog_name="cutline")
