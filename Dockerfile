# kfl from these sources, for CPUs: docker build -t kfl . && docker run --rm kfl run
# A fleet has an image of its own, in the project that `kfl deploy new` writes.
# The base is pinned by its tag; for a build that can never change, pin it by digest as well.
FROM python:3.12.11-slim-bookworm AS build
ARG EXTRAS=data,fast,plot,privacy,fleet
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt ./
# PyTorch for CPUs, which constraints.txt names, from its own index: the usual one brings gigabytes of CUDA.
RUN python -m venv /venv \
    && /venv/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /venv/bin/pip install --constraint constraints.txt ".[$EXTRAS]"

FROM python:3.12.11-slim-bookworm
RUN groupadd --gid 10001 kfl \
    && useradd --uid 10001 --gid kfl --no-create-home --home-dir /tmp --shell /usr/sbin/nologin kfl \
    && mkdir /work && chown kfl:kfl /work
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /work
USER 10001:10001
# A command that ends has no health to check.
HEALTHCHECK NONE
ENTRYPOINT ["kfl"]
CMD ["--help"]
