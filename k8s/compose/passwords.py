"""Draws the passwords of docker-compose.yml, once: files of the volume `secrets`, mounted here at /data."""

import os
import secrets
from pathlib import Path

FOLDER = Path("/data")
NAMES = ("api-token", "mysql-cutline", "mysql-root", "s3-secret")

for name in NAMES:
    file = FOLDER / name
    if not file.exists():
        chosen = os.environ.get("CUTLINE_API_TOKEN") if name == "api-token" else None
        draft = file.with_suffix(".draft")
        draft.write_text(chosen or secrets.token_hex(16))
        draft.rename(file)

key = (FOLDER / "s3-secret").read_text()
(FOLDER / "aws").write_text(f"[default]\naws_access_key_id = cutline\naws_secret_access_key = {key}\n")
