"""Previews for whoever has no Spark: this process takes their requests from Redis, one at a time.

They are analysed in a thread of their own, beside the pipelines' threads, which go on applying meanwhile. While one is
analysed no other is taken: if Spark hangs in it, other Spark writers take the next ones.
"""

from __future__ import annotations

import asyncio
import logging

from pyspark.sql import SparkSession
from redis.asyncio import Redis

from cutline.common.causes import Cause, Code
from cutline.common.errors import CutlineError
from cutline.common.mesh.previews import Previews
from cutline.common.preview import PreviewAnswer, PreviewRequest
from cutline.common.threads import Threads
from cutline.spark_writer import session
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.preview import answer

logger = logging.getLogger("cutline.spark_writer")
LOOK_SECONDS = 0.5


async def serve(redis: Redis) -> None:
    """Answer requests once Spark runs, until cancelled; a Redis that does not answer is asked again."""
    previews, threads = Previews(redis), Threads("preview")
    while True:
        spark = session.running()
        try:
            taken = None if spark is None else await previews.next()
            if spark is not None and taken is not None:
                name, request = taken
                await previews.put(name, await threads.call(_answer, spark, request))
                continue
        except CutlineError as error:
            logger.debug("no preview is taken: %s", error)
        except Exception:  # a request of another version: its sender waits in vain, and says so
            logger.exception("a request for a preview was dropped")
        await asyncio.sleep(LOOK_SECONDS)


def _answer(spark: SparkSession, request: PreviewRequest) -> PreviewAnswer | Cause:
    try:
        return answer(spark, request)
    except Exception as error:
        logger.warning("a preview failed: %s", first_line(error))
        return Cause(Code.UNEXPECTED, f"the Spark writer could not analyse it: {first_line(error)}", "try again")
