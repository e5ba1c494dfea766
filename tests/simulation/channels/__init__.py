"""The channels: the real sender.py and receiver.py of common/mesh on a simulated Redis."""
