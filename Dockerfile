# One image for every service: the command says which (`python -m cutline.services.reader`, `python -m
# cutline.spark_writer`, `cutline`).
FROM debian:bookworm-slim AS build
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends default-jre-headless gcc libc6-dev procps python3-dev python3-venv
WORKDIR /src
COPY LICENSE README.md pyproject.toml setup.py ./
COPY common common
COPY services services
COPY spark_writer spark_writer
# For object storage and other catalogues: --build-arg EXTRAS='[s3]' --build-arg WITH='--with s3 --with postgresql'
ARG EXTRAS=
ARG WITH=
RUN python3 -m venv /opt/cutline && /opt/cutline/bin/pip install -q --no-cache-dir ".$EXTRAS"
RUN CUTLINE_SPARK_JARS=/opt/jars /opt/cutline/bin/cutline setup $WITH

FROM debian:bookworm-slim
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends default-jre-headless procps python3 redis-server \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home cutline \
 && install -d -o cutline /data
COPY --from=build /opt/jars /opt/jars
COPY --from=build /opt/cutline /opt/cutline
ENV PATH=/opt/cutline/bin:$PATH CUTLINE_SPARK_JARS=/opt/jars PYTHONUNBUFFERED=1
USER cutline
WORKDIR /data
CMD ["cutline", "--help"]
