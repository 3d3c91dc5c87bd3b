# The operator's image: one static binary, no shell, not root. Every process of the operator runs from it.
#
#   docker build --build-arg GIT_COMMIT=$(git rev-parse --short=12 HEAD) -t egress-proxies-operator:dev .
#
# Both base images are arguments, so that the image builds where only a mirror, or no registry at all, can be reached
# (hack/images/build.sh does the latter).
ARG GO_IMAGE=golang:1.26
ARG BASE=gcr.io/distroless/static-debian12:nonroot

FROM ${GO_IMAGE} AS build
ARG GIT_COMMIT=unknown
ARG GOPROXY
ARG GOCACHE=/go/cache
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=${TARGETOS:-linux} GOARCH=${TARGETARCH} go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X crawl.example.com/egress-proxies-operator/internal/version.Commit=${GIT_COMMIT}" \
      -o /out/egress-proxies-operator ./cmd
# Certificate authorities for probes of public sites and cloud APIs; a base without any may be used (scratch).
RUN mkdir -p /out/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ || true

FROM ${BASE}
COPY --from=build /out/ /
USER 65532:65532
ENTRYPOINT ["/egress-proxies-operator"]
