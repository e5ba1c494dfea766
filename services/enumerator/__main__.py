"""`python -m cutline.services.enumerator`: leads each pipeline whose lease it holds, stands by for others."""

from __future__ import annotations

from cutline.common.config.environment import Environment
from cutline.common.mesh.host import Host, run_service
from cutline.services.enumerator.pipelines import serve
from cutline.services.enumerator.ports import Sources
from cutline.services.enumerator.reach import verify_reach
from cutline.services.enumerator.source import SourceReader


async def main() -> None:
    """Serve every pipeline of the store until the process is asked to end."""
    environment = Environment.read()
    host = Host.of_process("enumerator", environment)
    await serve(host, environment, Sources(open=SourceReader, verify_reach=verify_reach))


if __name__ == "__main__":
    run_service(main)
