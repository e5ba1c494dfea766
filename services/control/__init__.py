"""The control service: what runs and how it goes, told over HTTP."""
