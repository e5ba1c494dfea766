# One image for every service: the command says which (`python -m services.reader`, `python -m spark_writer`, `cutline`).
FROM debian:bookworm-slim AS build
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends gcc libc6-dev maven python3 python3-dev python3-venv
WORKDIR /src
COPY pyproject.toml setup.py ./
# Spark's jars, by the coordinates of pyproject.toml.
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["tool"]["cutline"]["jars"], sep="\n")' \
  | while read -r artifact; do \
      mvn -B -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        -Dartifact="$artifact" -DoutputDirectory=/opt/jars </dev/null || exit 1; \
    done
COPY common common
COPY services services
COPY spark_writer spark_writer
RUN python3 -m venv /opt/cutline && /opt/cutline/bin/pip install -q --no-cache-dir .

FROM debian:bookworm-slim
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless procps python3 redis-server \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home cutline \
 && install -d -o cutline /data
COPY --from=build /opt/jars /opt/jars
COPY --from=build /opt/cutline /opt/cutline
ENV PATH=/opt/cutline/bin:$PATH CUTLINE_SPARK_JARS=/opt/jars PYTHONUNBUFFERED=1
USER cutline
WORKDIR /data
CMD ["cutline", "--help"]
