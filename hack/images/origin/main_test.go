package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestSite(t *testing.T) {
	tests := []struct {
		path   string
		status int
		body   bool
	}{
		{path: "/generate_204", status: http.StatusNoContent},
		{path: "/page", status: http.StatusOK, body: true},
		{path: "/", status: http.StatusOK, body: true},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			var log bytes.Buffer
			site := newSite(slog.New(slog.NewJSONHandler(&log, nil)))
			request := httptest.NewRequest(http.MethodGet, "https://origin.example"+tt.path, nil)
			request.RemoteAddr = "10.244.0.7:4711"
			response := httptest.NewRecorder()

			site.ServeHTTP(response, request)

			if response.Code != tt.status {
				t.Errorf("status %d, want %d", response.Code, tt.status)
			}
			var line struct{ RemoteAddr, Path string }
			if err := json.Unmarshal(log.Bytes(), &line); err != nil {
				t.Fatalf("log is not one JSON line: %v: %q", err, log.String())
			}
			if line.RemoteAddr != "10.244.0.7:4711" || line.Path != tt.path {
				t.Errorf("log line %+v", line)
			}
			if !tt.body {
				if response.Body.Len() != 0 {
					t.Errorf("body %q, want none", response.Body)
				}
				return
			}
			var answer Answer
			if err := json.Unmarshal(response.Body.Bytes(), &answer); err != nil {
				t.Fatalf("answer: %v", err)
			}
			if answer.Source != "10.244.0.7" || answer.Path != tt.path || answer.Host != "origin.example" {
				t.Errorf("answer %+v", answer)
			}
		})
	}
}

func TestRunNeedsCertificate(t *testing.T) {
	err := run(t.Context(), io.Discard, "127.0.0.1:0", "", "", "")
	if err == nil || err.Error() != "--tls-cert and --tls-key are required" {
		t.Errorf("error %v", err)
	}
}
