# docker build --tag afield . && docker run --rm --volume "$PWD:/work" afield bench
FROM python:3.11-slim

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '.[parquet]' \
    && useradd --create-home afield

USER afield
WORKDIR /work
ENTRYPOINT ["afield"]
CMD ["--help"]
