"""The simulated server: three flavours, commits in two steps, XA, DDL, rotation, restart, fail-over; and its cursor.

Its behaviour was measured on real servers. A commit is first flushed to the binlog, then visible to SELECT, then
(MySQL) in `gtid_executed`; locks keep others off its rows until then. The flushed position runs ahead of what a SELECT
sees. Positions, watermarks and schemas are the real ones of common/.
"""
