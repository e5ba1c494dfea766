"""Tests of what reads MySQL and MariaDB: binlog, decoders, watermarks."""
