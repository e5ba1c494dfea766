"""`cutline token`, `cutline audit` and `cutline me`."""

from __future__ import annotations

import click

from cutline.services.client.rest.models import Role
from cutline.services.run.cli.printing import name_of, print_json
from cutline.services.run.cli.remote import Session, asks, limit_option
from cutline.services.run.figures import when


@click.command("me")
@asks
def me(session: Session) -> None:
    """Show who the token says you are, and your role."""
    session.show(session.client.me())


@click.group("token")
def group() -> None:
    """Tokens of people and programs; needs the role admin."""


@group.command("list")
@asks
def list_(session: Session) -> None:
    """List all tokens, without the tokens themselves."""
    session.list(
        list(session.client.each_token()),
        ("id", lambda found: found.id),
        ("name", lambda found: found.name),
        ("role", lambda found: found.role),
        ("made", lambda found: when(found.at)),
        ("by", lambda found: found.by),
        ("expires", lambda found: when(found.expires_at)),
        ("revoked", lambda found: when(found.revoked_at)),
        none="no token",
    )


@group.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), required=True)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="It expires after so many days.")
@asks
def create(session: Session, name: str, role: Role, days: float | None) -> None:
    """Make a token for NAME, and print it: this once."""
    made = session.client.make_token(name, role, expires_in_days=days)
    if session.as_json:
        print_json(made)
    else:
        click.echo(made.token)


@group.command("revoke")
@click.argument("token_id", metavar="ID")
@asks
def revoke(session: Session, token_id: str) -> None:
    """Revoke the token with this ID, at once."""
    session.client.revoke_token(token_id)
    if session.as_json:
        print_json({"id": token_id, "revoked": True})
    else:
        click.echo(f"token {token_id} is revoked")


@click.command("audit")
@limit_option
@asks
def audit(session: Session, limit: int) -> None:
    """Print the newest records of the audit log; needs the role admin."""
    session.list(
        session.client.audit(limit=limit),
        ("at", lambda found: when(found.at)),
        ("by", lambda found: found.by),
        ("from", lambda found: found.address),
        ("method", lambda found: found.method),
        ("path", lambda found: found.path),
        ("status", lambda found: str(found.status)),
        ("command", lambda found: name_of(found.command)),
        ("cause", lambda found: found.cause),
        none="nothing was changed yet",
    )


COMMANDS = (me, group, audit)
