"""The store: the real common/store/store.py on simulated disks and buckets."""
