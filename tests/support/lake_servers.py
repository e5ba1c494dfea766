"""Real servers of a lake for tests: PostgreSQL as a catalogue, an S3 server, Iceberg's REST catalogue."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from cutline.common import programs
from cutline.common.config.environment import cache_folder
from cutline.spark_writer import jars as spark_jars
from tests.support.server_process import LocalServer, ServerFailed
from tools.builds import built_once, go_program
from tools.programs import Missing, program


class PostgreSQL(LocalServer):
    """PostgreSQL of Debian's package, which is not on PATH, with the user `lake`; not as root, which it refuses."""

    name = "postgresql"
    user, password = "lake", "lake-secret"

    def create(self) -> dict[str, str]:
        """Make a database; return the properties of an Iceberg catalogue in it."""
        name = f"lake_{uuid.uuid4().hex[:8]}"
        address = ["-h", self.host, "-p", str(self.port), "-U", self.user]
        subprocess.run(
            [*self._as_user("createdb"), *address, name], check=True, cwd="/", env={"PGPASSWORD": self.password}
        )
        uri = f"jdbc:postgresql://{self.host}:{self.port}/{name}"
        return {"type": "jdbc", "uri": uri, "jdbc.user": self.user, "jdbc.password": self.password}

    def _make_folder(self) -> Path:
        # As root not in TMPDIR, the tests' own folder, which only root may enter.
        folder = Path(tempfile.mkdtemp(prefix="cutline-", dir="/tmp" if os.geteuid() == 0 else None))
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
        try:
            secret = folder / "password"
            secret.write_text(self.password)
            secret.chmod(0o644)
            words = ["-D", str(folder / "data"), "-U", self.user, f"--pwfile={secret}", "--auth=scram-sha-256"]
            made = subprocess.run(
                [*self._as_user("initdb"), *words, "--encoding=UTF8", "--locale=C", "--no-sync"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/",
            )  # fmt: skip
            if made.returncode != 0:
                raise ServerFailed(f"{self.name} could not be initialised:\n{made.stderr}")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _as_user(self, name: str) -> list[str]:
        program("pg_lsclusters")  # of the package that brings the server; raises Missing
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
        if not found:
            raise Missing(f"this machine has no {name} of PostgreSQL: install the Debian package postgresql")
        user = [program("setpriv"), "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        return [*(user if os.geteuid() == 0 else []), str(found[-1])]

    def _command(self) -> list[str]:
        assert self.folder is not None
        options = {"listen_addresses": self.host, "unix_socket_directories": self.folder, "fsync": "off"}
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        return [*self._as_user("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *words]

    def _end(self, first: signal.Signals) -> None:
        super()._end(signal.SIGINT if first == signal.SIGTERM else first)  # SIGTERM waits for every client to leave

    def _answers(self) -> bool:
        command = [*self._as_user("pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        return subprocess.run(command, check=False, cwd="/").returncode == 0


class S3(LocalServer):
    """VersityGW, an S3 server that keeps objects as files. It comes from the Go module proxy and is built once.

    Of two conditional PUTs of one key at the same moment exactly one succeeds. `create` makes a bucket.
    """

    name = "s3"
    MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
    key, secret, region = "cutline", "cutline-secret", "us-east-1"

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which every S3 library finds this server and its rights."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }

    @property
    def catalog(self) -> dict[str, str]:
        """The same as properties of an Iceberg catalogue."""
        return {
            "s3.endpoint": self.url,
            "s3.path-style-access": "true",
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "client.region": self.region,
        }

    def create(self, bucket: str, *, key: str | None = None, secret: str | None = None) -> None:
        """Make a bucket, of this user."""
        import s3fs  # `make test-full` only

        s3fs.S3FileSystem(key=key or self.key, secret=secret or self.secret, endpoint_url=self.url).mkdir(bucket)

    def user(self, key: str, secret: str, bucket: str) -> None:
        """Make a user and a bucket of that user's."""
        access = ["--access", self.key, "--secret", self.secret, "--endpoint-url", self.url]
        words = ["create-user", "--access", key, "--secret", secret, "--role", "userplus"]
        subprocess.run([str(versitygw()), "admin", *access, *words], check=True, capture_output=True)
        self.create(bucket, key=key, secret=secret)

    def allow(self, bucket: str, user: str, *, but_not: str | None = None) -> None:
        """Give a user all rights to another user's bucket, but for the objects of one pattern."""
        import s3fs  # `make test-full` only

        principal, objects = {"AWS": [user]}, f"arn:aws:s3:::{bucket}/"
        statements = [
            {"Effect": "Allow", "Principal": principal, "Action": "s3:*", "Resource": [objects[:-1], objects + "*"]}
        ]
        if but_not is not None:
            statements.append(
                {"Effect": "Deny", "Principal": principal, "Action": "s3:GetObject", "Resource": objects + but_not}
            )
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        files = s3fs.S3FileSystem(key=self.key, secret=self.secret, endpoint_url=self.url)
        files.call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)

    def _make_folder(self) -> Path:
        folder = super()._make_folder()
        for name in ("data", "iam"):
            (folder / name).mkdir()
        return folder

    def _command(self) -> list[str]:
        assert self.folder is not None
        words = ["--quiet", "--port", f"{self.host}:{self.port}", "--access", self.key, "--secret", self.secret]
        words += ["--region", self.region, "--iam-dir", str(self.folder / "iam")]
        return [str(versitygw()), *words, "posix", str(self.folder / "data")]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((self.host, self.port), 2).close()
            return True
        return False


def versitygw() -> Path:
    """The S3 server's program, built in about a minute of CPU."""
    return go_program(S3.MODULE)


class IcebergRest(LocalServer):
    """Iceberg's own REST catalogue (its test fixture, over an SQLite file), with `properties` of its FileIO.

    It lends the credentials among them to its clients, for each table.
    """

    name = "iceberg-rest"

    def __init__(self, warehouse: str, properties: Mapping[str, str]) -> None:
        super().__init__()
        self.warehouse = warehouse
        self.properties = properties

    @property
    def catalog(self) -> dict[str, str]:
        """The properties of an Iceberg catalogue there: without credentials."""
        kept = ("s3.endpoint", "s3.path-style-access", "client.region")
        own = {key: value for key, value in self.properties.items() if key in kept}
        return {"type": "rest", "uri": f"http://{self.host}:{self.port}", **own}

    def _command(self) -> list[str]:
        if self.warehouse.startswith("s3:") and (lacking := spark_jars.missing(spark_jars.folder(), ("s3",))):
            raise Missing(str(spark_jars.describe_missing(spark_jars.folder(), lacking)))  # else it fails at each table
        chosen = {
            "rest.port": str(self.port),
            "uri": f"jdbc:sqlite:{self.folder}/catalog.db",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse,
            "include-credentials": "true",
            "http-client.type": "urlconnection",  # the default client is not in our jar for S3
            "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
            **self.properties,
        }
        named = [f"CATALOG_{key.replace('-', '__').replace('.', '_').upper()}={value}" for key, value in chosen.items()]
        jars = [
            *iceberg_rest().glob("*.jar"),
            *_pyspark_jars("hadoop-client-*.jar"),
            *spark_jars.folder().glob("*.jar"),
        ]
        path = ":".join(str(jar) for jar in jars if "spark-runtime" not in jar.name)
        java = [str(programs.java().path), "-Xmx256m", "-cp", path]
        return [program("env"), *named, *java, "org.apache.iceberg.rest.RESTCatalogServer"]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((self.host, self.port), 2).close()
            return True
        return False


def _pyspark_jars(pattern: str) -> list[Path]:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return sorted((Path(found.origin).parent / "jars").glob(pattern))


def iceberg_rest() -> Path:
    """The folder with the jars of Iceberg's REST catalogue; the first use fetches them, by Ivy (19 MB)."""
    recipe = Path(__file__).with_name("iceberg_rest.xml")
    target = cache_folder() / f"iceberg-rest-{hashlib.sha256(recipe.read_bytes()).hexdigest()[:8]}"
    with built_once(target) as building:
        if building is None:
            return target
        with tempfile.TemporaryDirectory(prefix="cutline-ivy-") as scratch:
            (ivy,) = _pyspark_jars("ivy-*.jar")
            to = f"{building}/[artifact]-[revision](-[classifier]).[ext]"
            words = ["-cache", scratch, "-ivy", str(recipe), "-types", "jar", "bundle", "-retrieve", to]
            done = subprocess.run(
                [str(programs.java().path), f"-Duser.home={scratch}", "-jar", str(ivy), *words],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=scratch,
            )  # fmt: skip
        if done.returncode != 0 or not any(building.glob("*-tests.jar")):
            raise Missing(f"the jars of Iceberg's REST catalogue could not be fetched:\n{done.stdout[-2000:]}")
    return target
