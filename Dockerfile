# docker build --tag afield . && docker run --rm --volume "$PWD:/work" afield bench
FROM python:3.11-slim

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# The package that is installed is this folder, which has no version to pin.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '.[clip,onnx,parquet]' \
    && useradd --create-home --uid 1000 afield

USER 1000
WORKDIR /work
ENTRYPOINT ["afield"]
CMD ["--help"]
