"""Makes the bucket of the store and the warehouse, if it is not there yet."""

import s3fs

s3 = s3fs.S3FileSystem()
if not s3.exists("lake"):
    s3.mkdir("lake")
