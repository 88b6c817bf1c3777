# The image: verl 0.5.0, patched, with what it needs and GSM8K. `make build` gives the arguments.
# BuildKit's own frontend, so nothing has to be pulled but the base. Only env/'s scripts do the work.

# env/pins.toml: profiles.cu118.base.runtime
ARG BASE_IMAGE=nvidia/cuda:11.8.0-runtime-ubuntu22.04@sha256:eaaccb3528ceca110601131434ab467e41d694a41e8c9bf280fb27ac18fcb29b
ARG PROFILE=cu118

# ------------------------------------------------------------------ what every stage stands on
FROM ${BASE_IMAGE} AS base
ARG PROFILE
ARG APT_MIRROR
ENV TZ=UTC LANG=C.UTF-8 VERL_P40_VENV=/opt/verl-p40/.venv PATH=/opt/verl-p40/.venv/bin:$PATH
WORKDIR /opt/verl-p40
COPY env/image/system.sh env/image/secrets.sh env/image/
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc \
    . env/image/secrets.sh && bash env/image/system.sh runtime "$PROFILE"

# ------------------------------------------------------------------ what no index has, by hash
FROM base AS archives
ARG PROFILE
ARG MEDIA
ARG TORCH_URL
ARG CUDNN_URL
ARG APEX_URL
ARG GSM8K_URL
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc \
    . env/image/secrets.sh && bash env/image/system.sh download "$PROFILE"
COPY env/install/archives.sh env/install/
COPY env/locks/archives.txt env/locks/
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc \
    --mount=type=cache,target=/cache \
    --mount=type=bind,from=downloads,target=/opt/verl-p40/env/downloads \
    . env/image/secrets.sh && \
    bash env/install/archives.sh "/cache/archives-$PROFILE" data "$PROFILE" ${MEDIA:+"$PROFILE-media"} && \
    cp -r "/cache/archives-$PROFILE" /archives

FROM archives AS cudnn
ARG PROFILE
COPY env/install/cudnn.sh env/install/
RUN bash env/install/cudnn.sh "$PROFILE" /archives /root-of-cudnn

# ------------------------------------------------------------------ compilers, never in the runtime
FROM base AS toolchain
ARG PROFILE
ARG CUDA_ARCH=6.1
ENV TORCH_CUDA_ARCH_LIST=${CUDA_ARCH}
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc \
    . env/image/secrets.sh && bash env/image/system.sh toolchain "$PROFILE"

# ------------------------------------------------------------------ packages, by hash: all but torch
FROM toolchain AS packages
ARG PROFILE
ARG PIP_INDEX_URL
ENV UV_LINK_MODE=copy UV_CACHE_DIR=/cache/uv PIP_CACHE_DIR=/cache/pip TOOLS=no
COPY env/install env/install
COPY env/locks env/locks
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc \
    --mount=type=cache,target=/cache \
    . env/image/secrets.sh && export TORCH=no && \
    bash env/install/venv.sh "$PROFILE" && bash env/install/python.sh "$PROFILE"

# ------------------------------------------------------------------ torch, and apex where it is wanted
FROM packages AS environment
ARG PROFILE
ARG MEDIA
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc \
    --mount=type=cache,target=/cache \
    --mount=type=bind,from=archives,source=/archives,target=/opt/verl-p40/env/downloads \
    . env/image/secrets.sh && export MEDIA && \
    bash env/install/venv.sh "$PROFILE" && bash env/install/python.sh "$PROFILE" && \
    bash env/install/apex.sh "$PROFILE" env/downloads && rm -f .venv/.lock && \
    .venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash .venv/lib

# ------------------------------------------------------------------ verl and its queue
FROM environment AS verl
COPY env env
COPY verl-patches verl-patches
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc \
    --mount=type=cache,target=/cache \
    --mount=type=bind,from=downloads,target=/opt/verl-p40/env/downloads \
    . env/image/secrets.sh && export VERL_P40_OUT=/cache/verl-p40 && \
    bash env/image/overlay.sh /opt/verl-p40/.venv /overlay bash env/install/verl.sh

# ------------------------------------------------------------------ GSM8K, as published, or no image
FROM verl AS data
COPY data data
RUN --mount=type=bind,from=archives,source=/archives,target=/opt/verl-p40/env/downloads \
    export PYTHONPATH=/opt/verl-p40 VERL_P40_OUT=/tmp/out && \
    python -m data.prepare --source url --name gsm8k && mv /tmp/out/data/gsm8k /gsm8k

# ------------------------------------------------------------------ what is run
FROM base AS runtime
ARG BASE_IMAGE
ARG PROFILE
ARG CUDA_ARCH=6.1
ARG HF_ENDPOINT=https://huggingface.co
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=unknown
COPY --link --from=environment /opt/verl-p40/.venv /opt/verl-p40/.venv
COPY --link --from=cudnn /root-of-cudnn/ /
COPY --link --from=verl /overlay/ /
COPY --link --from=data /gsm8k /opt/verl-p40/share/gsm8k
COPY --link --from=archives /archives/archives.txt /opt/verl-p40/share/
COPY --link . /opt/verl-p40
# NVIDIA's bases would refuse drivers that CUDA 11.8 runs on by minor-version compatibility; the doctor
# holds the driver against the profile.
ENV PYTHONPATH=/opt/verl-p40 VERL_P40_OUT=/opt/verl-p40/out VERL_P40_PROFILE=${PROFILE} \
    TORCH_CUDA_ARCH_LIST=${CUDA_ARCH} HF_ENDPOINT=${HF_ENDPOINT} HOME=/tmp USER=trainer \
    PYTHONDONTWRITEBYTECODE=1 NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_DISABLE_REQUIRE=1 \
    GSM8K_DIR=/opt/verl-p40/share/gsm8k/raw
LABEL org.opencontainers.image.title="verl-p40" \
      org.opencontainers.image.description="RL post-training with verl on older NVIDIA cards: profile ${PROFILE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.licenses="Apache-2.0 AND MIT"
# Whatever the modes of the checkout were; bytecode, since nothing can write it later. verl's is compared
# with its source at each start, so that a file of it can be replaced.
RUN ldconfig && rm -f /var/cache/ldconfig/aux-cache && install -d -m 1777 /opt/verl-p40/out && \
    chmod -R u=rwX,go=rX env verl-patches data run LICENSE NOTICE README.md pyproject.toml && \
    python -m compileall -q -j 0 --invalidation-mode checked-hash .venv/src/verl env data run && \
    REVISION=${REVISION} BASE_IMAGE=${BASE_IMAGE} python -m env.image.manifest
USER 1000:1000
# NVIDIA's bases print a banner before a command's own output.
ENTRYPOINT []
CMD ["python", "-m", "run.train", "--help"]
