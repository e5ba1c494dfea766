"""The dashboard in Debian's Chromium, over made-up pipelines and a real one."""
