"""Makes the bucket and defines the pipeline, once. A pipeline that is there stays as the API may have changed it."""

import os
from pathlib import Path

import s3fs

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.store.store import Store

FILE = Path("/etc/cutline/pipeline.yaml")
BUCKET = "lake"

s3 = s3fs.S3FileSystem()
if not s3.exists(BUCKET):
    s3.mkdir(BUCKET)
name = load(FILE).name
if Store(Environment.read().need_store_url()).pipeline(name).definition() is not None:
    print(f"pipeline {name} is in the store already")
else:
    os.execvp("cutline", ["cutline", "define", str(FILE)])
