package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// startingRetry is when to try again while the signing key is not loaded.
const startingRetry = time.Second

func (s *Server) list(w http.ResponseWriter, r *http.Request, _ httprouter.Params) error {
	who, err := s.Auth.authenticate(r)
	if err != nil {
		return err
	}
	q, text, err := parseList(r.URL, s.DefaultNamespace)
	if err != nil {
		return err
	}
	if err := s.allow(r, who, "list", "proxies", q.Namespace); err != nil {
		return err
	}
	proxies, err := s.Backend.List(r.Context(), q)
	if err != nil {
		return err
	}
	if text {
		var b strings.Builder
		for _, p := range proxies {
			if p.URL != "" {
				fmt.Fprintln(&b, p.URL)
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(b.String()))
		return nil
	}
	view := wire.ProxyList{Proxies: make([]wire.Proxy, 0, len(proxies))}
	for _, p := range proxies {
		view.Proxies = append(view.Proxies, viewOf(p))
	}
	writeJSON(w, http.StatusOK, "application/json", view)
	return nil
}

func (s *Server) lease(w http.ResponseWriter, r *http.Request, _ httprouter.Params) error {
	who, err := s.Auth.authenticate(r)
	if err != nil {
		return err
	}
	var body leaseBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	request, err := body.request(s.DefaultNamespace, who.Name, r.Header)
	if err != nil {
		return err
	}
	if err := s.allow(r, who, "create", "proxyleases", request.Namespace); err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return err
	}
	// The deadline for reading the request would otherwise end the call while it waits, for a proxy or for a leader. A writer
	// that has no deadlines needs nothing done.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	lease, replayed, err := s.Backend.Lease(r.Context(), request)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
	}
	return s.answer(w, status, lease)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, p httprouter.Params) error {
	ref, err := s.identify(r, p, "get")
	if err != nil {
		return err
	}
	lease, err := s.Backend.Get(r.Context(), ref)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, lease)
}

func (s *Server) renew(w http.ResponseWriter, r *http.Request, p httprouter.Params) error {
	ref, err := s.identify(r, p, "update")
	if err != nil {
		return err
	}
	if err := emptyBody(w, r); err != nil {
		return err
	}
	lease, err := s.Backend.Renew(r.Context(), ref)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, lease)
}

func (s *Server) report(w http.ResponseWriter, r *http.Request, p httprouter.Params) error {
	ref, err := s.identify(r, p, "update")
	if err != nil {
		return err
	}
	var body reportBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	report, err := body.report()
	if err != nil {
		return err
	}
	if err := s.Backend.Report(r.Context(), ref, report); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// release answers 204 whatever it is told, so that it may be repeated; an id that was never signed releases nothing.
func (s *Server) release(w http.ResponseWriter, r *http.Request, p httprouter.Params) error {
	who, err := s.Auth.authenticate(r)
	if err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return err
	}
	if ref, err := s.Signer.Parse(p.ByName("id")); err == nil {
		if err := s.allow(r, who, "delete", "proxyleases", ref.Namespace); err != nil {
			return err
		}
		if err := s.Backend.Release(r.Context(), ref); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) openapi(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(OpenAPI)
	return nil
}

// identify authenticates the sender and reads the lease id of the path.
func (s *Server) identify(r *http.Request, p httprouter.Params, verb string) (Ref, error) {
	who, err := s.Auth.authenticate(r)
	if err != nil {
		return Ref{}, err
	}
	if err := s.ready(); err != nil {
		return Ref{}, err
	}
	ref, err := s.Signer.Parse(p.ByName("id"))
	if err != nil {
		return Ref{}, &Error{Status: http.StatusNotFound, Code: wire.CodeLeaseNotFound, Detail: "This is not a lease id of this operator"}
	}
	return ref, s.allow(r, who, verb, "proxyleases", ref.Namespace)
}

// allow refuses namespaces that are not served and what the sender may not do.
func (s *Server) allow(r *http.Request, who caller, verb, resource, namespace string) error {
	if len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, namespace) {
		return &Error{
			Status: http.StatusForbidden, Code: wire.CodeForbidden, Field: "namespace",
			Detail: "This operator does not serve namespace " + namespace,
		}
	}
	return who.authorize(r.Context(), Access{Verb: verb, Resource: resource, Namespace: namespace})
}

func (s *Server) ready() error {
	if s.Signer.Ready() {
		return nil
	}
	return &Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNotReady, Detail: "The operator is starting", RetryAfter: startingRetry}
}

func (s *Server) answer(w http.ResponseWriter, status int, l Lease) error {
	id, err := s.Signer.ID(l.Ref)
	if err != nil {
		return err
	}
	writeJSON(w, status, "application/json", wire.Lease{
		LeaseID: id, ExpiresAt: l.ExpireTime.UTC(), TTLSeconds: l.TTLSeconds, Mode: string(l.Mode), Holder: l.Holder, Draining: l.Draining,
		Proxy: wire.LeasedProxy{Proxy: viewOf(l.Proxy), Username: l.Username, Password: l.Password},
	})
	return nil
}
