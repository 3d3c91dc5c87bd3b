package images

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Messages about sources.
const (
	messageGone      = "the server of the image says that it is not there or not for us"
	messageNoLength  = "the server of the image does not say how long it is (Content-Length)"
	messageServer    = "the server of the image cannot be reached or has broken off; it is tried again"
	messageNoFile    = "the file of the image is not there or cannot be read by the provider manager"
	messageNoImage   = "the image is not in the format qcow2"
	messageReference = "the image refers to another file, which no base may"
	messageRedirect  = "the server of the image redirects to where no image is fetched from: from https only to https, ten times at most"
)

const maxRedirects = 10

// errRedirect says that a redirect is not followed.
var errRedirect = errors.New("the redirect is refused")

func fieldOf(image Image, name string) string { return "images[" + image.Name + "]." + name }

func invalid(image Image, message string, raw error) error {
	err := providers.NewError(providers.InvalidSpec, opDownload, message, raw)
	err.Field = fieldOf(image, "url")
	return err
}

// source is an image being read.
type source struct {
	io.Reader
	// length is what was announced, left what has not come yet, in bytes.
	length, left int64
	image        Image
	close        func() error
	idle         *time.Timer
	err          error
}

// open begins to read an image.
func (s *Store) open(ctx context.Context, image Image) (*source, error) {
	u, err := url.Parse(image.URL)
	if err != nil {
		return nil, invalid(image, "is no URL", err)
	}
	if u.Scheme == "file" {
		return openFile(image, u.Path)
	}
	ctx, cancel := context.WithCancel(ctx)
	src := &source{image: image, idle: time.AfterFunc(IdleTimeout, cancel)}
	src.close = func() error { cancel(); return nil }
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, image.URL, nil)
	if err != nil {
		cancel()
		return nil, invalid(image, "is no URL", err)
	}
	// A length of what is sent is one of the image only when it is sent as it is.
	request.Header.Set("Accept-Encoding", "identity")
	client := *s.o.HTTP
	client.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("%w: too many", errRedirect)
		}
		if via[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
			return fmt.Errorf("%w: from https to %s", errRedirect, next.URL.Scheme)
		}
		return nil
	}
	response, err := client.Do(request)
	if err != nil {
		cancel()
		src.idle.Stop()
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			// Its text has the whole URL, which may be a licence to read.
			err = wrapped.Err
		}
		if errors.Is(err, errRedirect) {
			return nil, invalid(image, messageRedirect, err)
		}
		return nil, providers.NewError(providers.Unavailable, opDownload, messageServer, err)
	}
	src.close = func() error { cancel(); src.idle.Stop(); return response.Body.Close() }
	status := fmt.Errorf("the server answers %s", response.Status)
	switch {
	case response.StatusCode == http.StatusOK && response.ContentLength > 0:
		src.Reader, src.length, src.left = response.Body, response.ContentLength, response.ContentLength
		return src, nil
	case response.StatusCode == http.StatusOK:
		err = invalid(image, messageNoLength, status)
	case response.StatusCode >= 500, response.StatusCode == http.StatusTooManyRequests, response.StatusCode == http.StatusRequestTimeout:
		err = providers.NewError(providers.Unavailable, opDownload, messageServer, status)
	default:
		err = invalid(image, messageGone, status)
	}
	return nil, errors.Join(err, src.Close())
}

func openFile(image Image, path string) (*source, error) {
	// Before it is opened: opening a pipe waits for somebody who writes.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, invalid(image, messageNoFile, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, invalid(image, messageNoFile, err)
	}
	info, err = file.Stat()
	if err != nil {
		return nil, errors.Join(invalid(image, messageNoFile, err), file.Close())
	}
	return &source{Reader: io.LimitReader(file, info.Size()), length: info.Size(), left: info.Size(), image: image, close: file.Close}, nil
}

// Close ends the reading.
func (s *source) Close() error { return s.close() }

// Read implements io.Reader. It ends when nothing comes for IdleTimeout, and takes an end before the length for an error.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if s.idle != nil {
		s.idle.Reset(IdleTimeout)
	}
	s.left -= int64(n)
	if errors.Is(err, io.EOF) && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = providers.NewError(providers.Unavailable, opDownload, messageServer, err)
	}
	return n, err
}

// failure is what has kept the source from being read to its end; nil when nothing has.
func (s *source) failure() error { return s.err }

// rest is the whole image, of which the header was read already.
func (s *source) rest(h header) io.Reader { return io.MultiReader(bytes.NewReader(h.raw), s) }

// header is the begin of an image in the format qcow2.
type header struct {
	raw []byte
	// capacity of the disk in it, in bytes.
	capacity int64
}

// The header of qcow2, by its specification: magic, version, offset of the backing file's name, ... virtual size at 24,
// incompatible features at 72 from version 3 on.
const (
	headerBytes      = 104
	qcow2Magic       = "QFI\xfb"
	externalDataFile = 1 << 2
)

// readHeader checks that an image is one that a base may be. One that names another file of the host would show that file to
// its guest.
func readHeader(s *source) (header, error) {
	image := s.image
	raw := make([]byte, headerBytes)
	n, err := io.ReadFull(s, raw)
	if failed := s.failure(); err != nil && failed != nil {
		return header{}, failed
	}
	if n < headerBytes || string(raw[:4]) != qcow2Magic {
		return header{}, invalid(image, messageNoImage, nil)
	}
	version, backing := binary.BigEndian.Uint32(raw[4:]), binary.BigEndian.Uint64(raw[8:])
	if backing != 0 || version >= 3 && binary.BigEndian.Uint64(raw[72:])&externalDataFile != 0 {
		return header{}, invalid(image, messageReference, nil)
	}
	capacity := binary.BigEndian.Uint64(raw[24:])
	if capacity == 0 || capacity > 1<<62 {
		return header{}, invalid(image, messageNoImage, nil)
	}
	return header{raw, int64(capacity)}, nil
}
