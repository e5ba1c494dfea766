"""The channels between the members of a pipeline's mesh."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from cutline.services.control.api.dependencies import Known, Shared, router
from cutline.services.control.watch import CURRENT_SECONDS

routes = router("channels")


class ChannelView(BaseModel):
    """One channel, as its sender reports it. Messages are counted since the epoch began."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    sender: str = Field(alias="from", examples=["reader-0"])
    receiver: str = Field(alias="to", examples=["writer-0"])
    outstanding_bytes: int = Field(description="bytes of rows that are sent and not yet taken")
    credit_bytes: int = Field(description="the most bytes of rows that may be outstanding")
    sent_bytes: int = Field(description="bytes of all messages that were sent")
    sent: int
    taken: int
    current: bool = Field(description="whether the sender reports now")
    as_of: float


@routes.get("/pipelines/{pipeline}/channels", operation_id="list_channels")
async def channels(found: Known, control: Shared) -> list[ChannelView]:
    """List the channels of the epoch in progress."""
    status = await control.watches.find(found).status()
    return [
        ChannelView(
            sender=member,
            receiver=peer,
            outstanding_bytes=channel.outstanding_bytes,
            credit_bytes=channel.credit_bytes,
            sent_bytes=channel.sent_bytes,
            sent=channel.sent,
            taken=channel.taken,
            current=status.read_at - part.at <= CURRENT_SECONDS,
            as_of=part.at,
        )
        for member, part in sorted(status.parts.in_epoch().items())
        if part.at is not None
        for peer, channel in sorted(part.channels.items())
    ]
