"""Prints what a SELECT finds in the lake, in the container of the Spark writer:

docker compose exec spark-writer python /etc/cutline/query.py 'SELECT count(*) FROM lake.shop.orders'
"""

import sys
from pathlib import Path

from cutline.common.config.pipeline import load
from cutline.spark_writer import session

session.for_config(load(Path("/etc/cutline/pipeline.yaml"))).sql(sys.argv[1]).show(100, truncate=False)
session.stop()
