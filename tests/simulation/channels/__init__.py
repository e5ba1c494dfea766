"""The channels: the real common/mesh/channels.py on a simulated Redis."""
