"""`python -m cutline.spark_writer.analyse`: a preview for a command that needs no services (preview.py).

It reads one request as JSON and prints the answer as its last line, or why there is none (`failed`, a cause). Spark is
started for it, small and on this machine, whatever the pipeline's own Spark is; it takes 5 to 20 s.
"""

from __future__ import annotations

import json
import sys

from cutline.common.causes import Cause, Code
from cutline.common.errors import CutlineError
from cutline.common.preview import PreviewRequest
from cutline.spark_writer import session
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.preview import answer

SETTINGS = {"spark.master": "local[1]", "spark.driver.memory": "512m"}


def main() -> None:
    """Answer one request."""
    request = PreviewRequest.from_json(json.load(sys.stdin))
    try:
        found = answer(session.start(SETTINGS), request).to_json()
    except CutlineError as error:
        found = {"failed": error.cause.to_json()}
    except Exception as error:
        found = {"failed": Cause(Code.UNEXPECTED, f"Spark could not analyse it: {first_line(error)}", "").to_json()}
    finally:
        session.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
