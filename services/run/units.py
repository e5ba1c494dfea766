"""The systemd units of one host: a target, and a template for each role of service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cutline.services.run.children import Counts

TARGET = "cutline.target"
ENVIRONMENT_FILE = "/etc/cutline/cutline.env"
_DOES = {
    "enumerator": "leads pipelines: plans snapshots, and takes checkpoints",
    "reader": "reads chunks and the binlog",
    "writer": "stages changes in the store",
    "spark-writer": "applies checkpoints to the lake",
    "control": "API, dashboard, metrics and alerts",
}
_STOP_SECONDS = 30
_HARDENED = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectControlGroups=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "UMask=0027",
)
"""What no service needs. MemoryDenyWriteExecute is not among them: Java compiles while it runs."""


def units(counts: Counts, *, command_of: Mapping[str, Sequence[str]], homes: bool) -> dict[str, str]:
    """The text of each unit, by its file's name. `command_of`: the absolute command that starts a role, and `setup`'s.
    `homes`: that command is in somebody's home folder, which must be readable then."""
    found = {TARGET: _target(counts)}
    for role in counts.by_role():
        setup = command_of["setup"] if role == "spark-writer" else None
        found[f"cutline-{role}@.service"] = _service(role, counts, command_of[role], setup=setup, homes=homes)
    return found


def _target(counts: Counts) -> str:
    wanted = [
        f"cutline-{role}@{index}.service" for role, count in counts.by_role().items() for index in range(count)
    ]
    return "\n".join((
        f"# {ENVIRONMENT_FILE}, which only root may read, must set at least",
        "#   CUTLINE_STORE_URL=file:///var/lib/cutline/store",
        "#   CUTLINE_REDIS_URL=redis://127.0.0.1:6379/0   (a Redis with maxmemory-policy noeviction)",
        "# and the passwords that pipelines name. A lake in a folder outside of /var/lib/cutline needs a drop-in",
        "# for all services, /etc/systemd/system/cutline-.service.d/lake.conf: [Service], ReadWritePaths=FOLDER.",
        "[Unit]",
        "Description=Cutline: all services of this host",
        "Wants=network-online.target",
        "After=network-online.target",
        *(f"Wants={name}" for name in wanted),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ))  # fmt: skip


def _service(
    role: str, counts: Counts, command: Sequence[str], *, setup: Sequence[str] | None, homes: bool
) -> str:
    fetch = () if setup is None else (f"ExecStartPre={_quoted(setup)}", "TimeoutStartSec=15min")
    return "\n".join((
        "[Unit]",
        f"Description=Cutline {role} %i: {_DOES[role]}",
        f"PartOf={TARGET}",
        "Wants=network-online.target",
        "After=network-online.target redis-server.service redis.service valkey-server.service valkey.service",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        "User=cutline",
        "Group=cutline",
        f"Environment=CUTLINE_READERS={counts.readers} CUTLINE_WRITERS={counts.writers}",
        "Environment=CUTLINE_CACHE=%C/cutline HOME=%S/cutline PYTHONUNBUFFERED=1",
        f"EnvironmentFile={ENVIRONMENT_FILE}",
        *fetch,
        f"ExecStart={_quoted(command)}",
        "Restart=always",
        "RestartSec=2",
        "RestartPreventExitStatus=2",
        "KillMode=mixed",
        f"TimeoutStopSec={_STOP_SECONDS}",
        "StateDirectory=cutline",
        "StateDirectoryMode=0750",
        "CacheDirectory=cutline",
        "WorkingDirectory=%S/cutline",
        "LimitNOFILE=65536",
        f"ProtectHome={'read-only' if homes else 'yes'}",
        *_HARDENED,
        "",
        "[Install]",
        f"WantedBy={TARGET}",
        "",
    ))  # fmt: skip


def _quoted(command: Sequence[str]) -> str:
    """A command line for systemd, in which % begins a specifier and $ a variable."""
    words = (word.replace("%", "%%").replace("$", "$$") for word in command)
    return " ".join(f'"{word}"' if " " in word else word for word in words)
