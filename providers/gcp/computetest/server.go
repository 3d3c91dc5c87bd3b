package computetest

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
)

// DefaultZones are the zones of a server that names none.
var DefaultZones = []string{"europe-west3-a", "europe-west3-b", "us-central1-a"}

// Timing is how long things take. The zero value of a field is no time at all.
type Timing struct {
	// Visible is how long gets and lists do not find a VM after its insert.
	Visible time.Duration
	// Staging is the time from the insert to STAGING. Inserts that fail in their operation fail then, and the VM is gone.
	Staging time.Duration
	// Running is the time from the insert to RUNNING.
	Running time.Duration
	// Address is the time from the insert to the external addresses, if that is later than Running.
	Address time.Duration
	// Delete is the time in STOPPING, until a deleted VM is gone.
	Delete time.Duration
}

// DefaultTiming is for fake clocks.
var DefaultTiming = Timing{Visible: 0, Staging: 2 * time.Second, Running: 10 * time.Second, Address: 12 * time.Second, Delete: 30 * time.Second}

// QuickTiming is for real clocks.
var QuickTiming = Timing{Staging: 5 * time.Millisecond, Running: 15 * time.Millisecond, Address: 20 * time.Millisecond, Delete: 20 * time.Millisecond}

// Options of a server; the zero value is fine.
type Options struct {
	// Clock moves the VMs. Default: the real one.
	Clock clock.PassiveClock
	// Zones there are, in every project. Default: DefaultZones.
	Zones []string
	// Projects there are. Default: any.
	Projects []string
	// Timing is how long things take. Default: DefaultTiming.
	Timing *Timing
	// Token is the bearer token that calls need; "" is none.
	Token string
	// PageLimit bounds the VMs in one answer, whatever maxResults asks. Default: 500, as at Google.
	PageLimit int
	// CustomNetworks are networks, by name, that have no subnetwork of their own in a region: one must be named.
	CustomNetworks []string
	// Hooks are told of the life of VMs.
	Hooks Hooks
}

// Hooks are told of the life of VMs, so that something real can stand for one. Nothing happens in the background: they run
// when a call, Settle or Close notices the change, and must not use the server themselves.
type Hooks struct {
	// OnRunning is told of a VM that came to run and shall get its external address. It returns the address; "" leaves the
	// choice to the server.
	OnRunning func(VM) (natIP string)
	// OnGone is told of a VM that OnRunning was told of and that has stopped to run: terminated, suspended or deleted.
	OnGone func(VM)
}

// Request is a call that arrived, in the order of arrival.
type Request struct {
	// Call is such as Insert; "" for what no method has.
	Call                string
	Project, Zone, Name string
	// Method and URI are as sent.
	Method, URI string
	Header      http.Header
	Body        []byte
	// Status is the HTTP status of the answer; 0 while there is none, and when the connection was dropped.
	Status int
	// Listed is how many VMs the answer to a list held.
	Listed int
}

// Server is a Compute Engine on the loopback. All methods may be called at any time.
type Server struct {
	// URL is where it listens, without the path: http://127.0.0.1:port.
	URL string

	t       testing.TB
	doc     *document
	options Options
	http    *httptest.Server
	closing chan struct{}

	mu          sync.Mutex
	timing      Timing
	token       string
	vms         map[string]*vm
	disks       map[string]bool // by path, of disks without a VM
	operations  map[string]*operation
	byRequestID map[string]*operation
	faults      []*fault
	unreachable map[string]bool
	missing     map[string]bool
	quotas      map[string]int  // of VMs, by region
	states      map[string]bool // that Google does not know
	unknownZone func(zone string) *ErrorAnswer
	requests    []*Request
	serial      uint64
}

// New starts a server that ends with the test.
func New(t testing.TB, options Options) *Server {
	t.Helper()
	doc, err := loadDocument()
	if err != nil {
		t.Fatal(err)
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Zones == nil {
		options.Zones = DefaultZones
	}
	if options.PageLimit == 0 {
		options.PageLimit = maxPage
	}
	s := &Server{
		t: t, doc: doc, options: options, closing: make(chan struct{}), timing: DefaultTiming, token: options.Token,
		vms: map[string]*vm{}, disks: map[string]bool{}, operations: map[string]*operation{}, byRequestID: map[string]*operation{},
		unreachable: map[string]bool{}, missing: map[string]bool{}, quotas: map[string]int{}, states: map[string]bool{}, unknownZone: UnknownZone,
	}
	if options.Timing != nil {
		s.timing = *options.Timing
	}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.http.URL
	t.Cleanup(s.close)
	return s
}

// close ends hanging calls, then the server and whatever stands for VMs.
func (s *Server) close() {
	close(s.closing)
	s.http.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.vms {
		s.stopped(v)
	}
}

// call is one request while it is being answered.
type call struct {
	*Request
	method *apiMethod
	// vars are the variables of the path.
	vars map[string]string
	http *http.Request
	// body is Body, decoded; nil without one.
	body obj
	// operation, when set, is how the operation of this call fails.
	operation *OperationError
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	c := &call{Request: &Request{Method: r.Method, URI: r.URL.RequestURI(), Header: r.Header.Clone(), Body: text}, http: r}
	s.mu.Lock()
	s.requests = append(s.requests, c.Request)
	refused := s.admit(c)
	var f *fault
	if refused == nil {
		f = s.fault(c)
	}
	switch {
	case f == nil:
	case f.Operation != nil:
		c.operation, f = f.Operation, nil
	case f.Down != "":
		s.unreachable[f.Down] = true
		f = nil
	}
	if f != nil && !f.Commit {
		s.mu.Unlock()
		s.play(w, c, f)
		return
	}
	var body obj
	if refused == nil {
		s.settle()
		if body, refused = s.handle(c); refused == nil {
			s.checkAnswer(c, body)
		}
	}
	s.mu.Unlock()
	switch {
	case f != nil:
		s.play(w, c, f)
	case refused != nil:
		s.send(w, c, refused.Status, refused.Header, refused.body())
	default:
		s.send(w, c, http.StatusOK, nil, body)
	}
}

// admit finds the method and looks at everything that needs no VM: form, credentials, project, zone.
func (s *Server) admit(c *call) *ErrorAnswer {
	u := *c.http.URL
	query := u.Query()
	// The document lost this parameter, but gcloud still sends it and the server still takes it.
	query.Del(partialSuccess)
	u.RawQuery = query.Encode()
	method, vars, wrong := s.doc.match(c.Method, &u)
	if method == nil {
		s.violation(c, wrong)
		return &ErrorAnswer{Status: http.StatusNotFound, Reason: "notFound", Message: "Not Found"}
	}
	c.method, c.vars = method, vars
	c.Call = strings.TrimPrefix(method.ID, "compute.")
	c.Project, c.Zone, c.Name = vars["project"], vars["zone"], s.nameOf(vars)
	if refused := s.authenticate(c); refused != nil {
		return refused
	}
	if len(c.Body) > 0 {
		if json.Unmarshal(c.Body, &c.body) != nil {
			s.violation(c, []string{"the body is no JSON object"})
			return &ErrorAnswer{Status: http.StatusBadRequest, Reason: "parseError", Message: "Parse Error"}
		}
	}
	if method.Request != nil {
		k := check{document: s.doc, method: method.ID, request: true, known: s.states}
		k.value(method.Request, c.body, "resource")
		wrong = append(wrong, k.wrong...)
		if c.Call == Insert {
			c.Name, _ = c.body["name"].(string)
		}
	}
	if len(wrong) > 0 {
		s.violation(c, wrong)
		at, why, _ := strings.Cut(wrong[0], ": ")
		return Invalid(at, "", why)
	}
	if s.options.Projects != nil && !slices.Contains(s.options.Projects, c.Project) && c.Call != imageFromFamily {
		return NotFound("projects/" + c.Project)
	}
	if c.Zone != "" && !slices.Contains(s.options.Zones, c.Zone) {
		return s.unknownZone(c.Zone)
	}
	if id, ok := query["requestId"]; ok && (!fits(uuidPattern, id[0]) || strings.Trim(id[0], "0-") == "") {
		return Invalid("requestId", id[0], "Must be a valid UUID other than the zero UUID.")
	}
	return nil
}

const uuidPattern = `[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`

func (s *Server) authenticate(c *call) *ErrorAnswer {
	if s.token == "" || c.Header.Get("Authorization") == "Bearer "+s.token {
		return nil
	}
	return Unauthenticated()
}

// violation fails the test: its client sent what Compute Engine does not know.
func (s *Server) violation(c *call, wrong []string) {
	for _, w := range wrong {
		s.t.Errorf("%s %s is not as Google's discovery document has it: %s", c.Method, c.URI, w)
	}
}

// checkAnswer fails the test when the server made up something.
func (s *Server) checkAnswer(c *call, body obj) {
	text, err := json.Marshal(body)
	if err != nil {
		s.t.Errorf("encode the answer to %s: %v", c.URI, err)
		return
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		s.t.Errorf("decode the answer to %s: %v", c.URI, err)
		return
	}
	k := check{document: s.doc, method: c.method.ID, known: s.states}
	k.value(c.method.Response, plain, "answer")
	for _, w := range k.wrong {
		s.t.Errorf("the answer to %s %s is not as Google's discovery document has it: %s", c.Method, c.URI, w)
	}
}

func (s *Server) send(w http.ResponseWriter, c *call, status int, header http.Header, body obj) {
	text, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		s.t.Errorf("encode the answer to %s: %v", c.URI, err)
		return
	}
	maps.Copy(w.Header(), header)
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	s.mu.Lock()
	c.Status = status
	s.mu.Unlock()
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone
}
