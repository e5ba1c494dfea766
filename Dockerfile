# One image for every service: the command says which (`python -m cutline.services.reader`, `python -m
# cutline.spark_writer`, `cutline`). It runs as an ordinary user with a read-only root file system; only /tmp and, where a
# service keeps files, /data need to be writable.
#
#   docker build --tag cutline .
#   --build-arg EXTRAS="s3 gcs"        Python packages of a store on object storage: extras of pyproject.toml
#   --build-arg WITH="s3 postgresql"   jars of a warehouse or a catalogue: extras of spark_writer/jars.toml
#   --build-arg VERSION=1.2.3          for the label org.opencontainers.image.version
#
# What changes least comes first: a changed source file makes two small layers anew, and fetches nothing.

# ---- Python packages --------------------------------------------------------------------------------------------------
FROM debian:bookworm-slim AS packages
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends default-jre-headless gcc libc6-dev procps python3-dev python3-venv
WORKDIR /src
COPY pyproject.toml ./
ARG EXTRAS=
RUN python3 -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; extras = project["optional-dependencies"]; \
      print(*project["dependencies"], *(package for extra in sys.argv[1:] for package in extras[extra]), sep="\n")' $EXTRAS > packages.txt \
 && python3 -m venv /opt/packages \
 && /opt/packages/bin/pip install -q --no-cache-dir -r packages.txt \
 && rm -rf /opt/packages/lib/python3*/site-packages/pyspark/examples /opt/packages/lib/python3*/site-packages/pyarrow/include

# ---- Spark's jars, and an archive of its classes: only the files that make them, so that no other change does so again -
FROM packages AS jars
COPY common/__init__.py common/causes.py common/errors.py common/programs.py /fetch/cutline/common/
COPY common/config/__init__.py common/config/environment.py /fetch/cutline/common/config/
COPY spark_writer/__init__.py spark_writer/classes.py spark_writer/jars.py spark_writer/jars.toml /fetch/cutline/spark_writer/
ARG WITH=
RUN CUTLINE_SPARK_JARS=/opt/jars PYTHONPATH=/fetch /opt/packages/bin/python -c 'import sys; from cutline.spark_writer import classes, jars; \
      jars.fetch(jars.folder(), extras=sys.argv[1:]); classes.make(jars.folder())' $WITH \
 && rm -f /opt/jars/.lock

# ---- Cutline itself, in a folder beside its packages -------------------------------------------------------------------
FROM packages AS cutline
COPY LICENSE README.md setup.py ./
COPY common common
COPY services services
COPY spark_writer spark_writer
RUN /opt/packages/bin/pip install -q --no-cache-dir --no-deps --target /opt/cutline .

# ---- the image ---------------------------------------------------------------------------------------------------------
FROM debian:bookworm-slim
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends default-jre-headless procps python3 redis-server \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
 && useradd --uid 10001 --no-create-home --home-dir /data cutline \
 && install -d -o cutline -g cutline /data
COPY --from=packages /opt/packages /opt/packages
COPY --from=jars /opt/jars /opt/jars
COPY --from=cutline /opt/cutline /opt/cutline
ENV PATH=/opt/cutline/bin:/opt/packages/bin:$PATH PYTHONPATH=/opt/cutline PYTHONUNBUFFERED=1 CUTLINE_SPARK_JARS=/opt/jars
USER 10001:10001
WORKDIR /data
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-m", "cutline.services.health"]
CMD ["cutline", "--help"]
ARG VERSION=unreleased
LABEL org.opencontainers.image.title="Cutline" \
      org.opencontainers.image.description="Copies MySQL and MariaDB into an Iceberg lake, and keeps them copied" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
