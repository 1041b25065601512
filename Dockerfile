# Headrace with its kernels compiled, and Spark of the same version: this image also runs the
# Spark master and workers, so that Python, pyarrow and pyspark agree on both sides.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock ./
RUN pip install --no-cache-dir --root-user-action ignore --constraint requirements.lock \
      'setuptools>=77' wheel 'cython>=3.3,<4' 'mkdocs>=1.6,<2'
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY headrace headrace
RUN pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels .
# Java comes from Debian, for all of Spark's programs.
RUN python -m venv /opt/headrace \
 && /opt/headrace/bin/pip install --no-cache-dir --constraint requirements.lock \
      /wheels/*.whl pyspark pandas
# The manual, which the console serves. Last, because a changed page needs no compiled kernels.
COPY mkdocs.yml ./
COPY docs docs
RUN python -m mkdocs build --quiet --strict \
      --site-dir /opt/headrace/lib/python3.11/site-packages/headrace/console/manual

FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 headrace \
 && mkdir -p /var/lib/headrace /staging \
 && chown headrace /var/lib/headrace /staging
COPY --from=build /opt/headrace /opt/headrace
# Spark's start scripts look for their home; the wheel is one.
RUN ln -s /opt/headrace/lib/python3.11/site-packages/pyspark /opt/spark
ENV PATH=/opt/headrace/bin:/opt/spark/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/headrace/bin/python \
    HEADRACE_DATA_DIR=/var/lib/headrace
USER headrace
# A new named volume takes the owner of what it covers.
VOLUME /var/lib/headrace
EXPOSE 6432 8080
STOPSIGNAL SIGTERM
# Of the server; what else runs in this image has none (docker-compose.yml).
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["headrace"]
CMD ["start", "--listen", "0.0.0.0:6432", "--http", "0.0.0.0:8080"]
