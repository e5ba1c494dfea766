"""Bytes of MySQL's protocol and binlog to Arrow, compiled."""
