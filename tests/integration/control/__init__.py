"""The control service over HTTP: reads, changes, metrics, alerts, traces and lineage."""
