# `slimsched serve` in a container (docs/how-to/deploy.md).
#
#   docker build -t slimsched .                                                        # CPU
#   docker build -t slimsched:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .   # PyPI's torch for Linux has CUDA
#   docker build -t slimsched:ray --build-arg EXTRAS=grpc,ray .                        # a node of Ray
ARG PYTHON=docker.io/library/python:3.11-slim

FROM ${PYTHON} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=grpc
RUN python -m venv /opt/slimsched
ENV PATH=/opt/slimsched/bin:$PATH
RUN pip install --no-cache-dir --no-compile --index-url "$TORCH_INDEX" torch torchvision
WORKDIR /src
COPY . .
# Layers keep whole seconds, and Numba compares the exact times of sources: all of them get the same one, before bytecode.
RUN pip install --no-cache-dir --no-compile ".[$EXTRAS]" \
    && pip uninstall --yes --quiet pip \
    && rm -rf /opt/slimsched/lib/python3.*/site-packages/torch/include \
    && find /opt/slimsched -name '*.py' -exec touch --date=@1700000000 {} + \
    && python -m compileall -q -x torch/testing/ /opt/slimsched

FROM ${PYTHON}
RUN useradd --uid 10001 --create-home --home-dir /var/lib/slimsched slimsched \
    && install --directory --owner=10001 /var/cache/slimsched
COPY --from=build /opt/slimsched /opt/slimsched
ENV PATH=/opt/slimsched/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 SLIMSCHED_CACHE=/var/cache/slimsched
USER 10001
WORKDIR /var/lib/slimsched
# It serves once, which compiles all that a router needs, for the processor of this machine: another kind compiles again.
RUN slimsched serve paper-live --set slo.floor=0.7 --port 0 --out /tmp/first 2> /tmp/first.log & \
    while kill -0 $! && ! grep -q 'serve: ready' /tmp/first.log; do sleep 1; done; \
    cat /tmp/first.log; kill $!; wait $! && rm -r /tmp/first /tmp/first.log
EXPOSE 8000 8001
# Beyond loopback `serve` requires TLS. The check is from inside, so it needs no authority.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 CMD ["python", "-c", "import ssl, urllib.request; urllib.request.urlopen('https://127.0.0.1:8000/v2/health/ready', context=ssl._create_unverified_context())"]
ENTRYPOINT ["slimsched"]
CMD ["--help"]
