# An image with PostgreSQL and docshard: a router, a shard, or both. docs/containers.md describes it.
#
#   docker build -t docshard .                              Debian 13, PostgreSQL 17
#   docker build --build-arg DEBIAN=bookworm --build-arg PG=15 --build-arg BUILD_BASE=rust:slim-bookworm -t docshard .
#   docker build --target extension … -t docshard-extension .    only the extension's files, for image volumes
#
# Both bases are the same release of Debian, which has PostgreSQL in the version PG. BUILD_BASE has Rust, or a package of rustup, as
# Debian has since 13.
ARG DEBIAN=trixie
ARG BASE=docker.io/library/debian:${DEBIAN}-slim
ARG BUILD_BASE=${BASE}

# The package is built as everybody builds it.
FROM ${BUILD_BASE} AS build
ARG PG=17
RUN apt-get update -q && apt-get install -y -q --no-install-recommends make ca-certificates
WORKDIR /docshard
COPY . .
RUN make deb PG="$PG"
# The layout of image volumes: lib/ and share/extension/.
RUN package=$(find target/deb -name '*.deb') && dpkg-deb -x "$package" /unpacked && \
    mkdir -p /extension/lib /extension/share && \
    cp /unpacked/usr/lib/postgresql/"$PG"/lib/* /extension/lib/ && \
    cp -r /unpacked/usr/share/postgresql/"$PG"/extension /extension/share/

FROM scratch AS extension
COPY --from=build /extension /

FROM ${BASE} AS node
ARG PG=17
ENV PG=${PG} PGDATA=/var/lib/postgresql/data/pgdata PATH=/usr/lib/postgresql/${PG}/bin:$PATH LC_ALL=C.UTF-8
# A user with a number that is known outside, before the package makes one. The package makes no cluster of its own.
RUN --mount=type=bind,from=build,source=/docshard/target/deb,target=/packages \
    groupadd --system --gid 999 postgres && \
    useradd --system --uid 999 --gid postgres --home-dir /var/lib/postgresql --shell /bin/bash postgres && \
    mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf && \
    apt-get update -q && apt-get install -y -q --no-install-recommends /packages/*.deb && rm -rf /var/lib/apt/lists/* && \
    install -d -o postgres -g postgres -m 700 "$(dirname "$PGDATA")" && install -d -o postgres -g postgres -m 755 /var/run/postgresql
COPY --chmod=755 docker/docshard-node docker/docshard-healthy docker/docshard-load-inbox /usr/local/bin/
COPY docs/demo/generate.sql /usr/local/share/docshard/
USER 999:999
VOLUME /var/lib/postgresql/data
EXPOSE 5432
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["docshard-healthy"]
ENTRYPOINT ["docshard-node"]
