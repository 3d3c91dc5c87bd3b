// Package peer lets a replica that does not lead ask the leader for a lease, on behalf of a call to its HTTP API, and tell it of
// what a call has changed, before the leader's watch does.
//
// It is a short cut and nothing more. A lease that the leader makes is one write to the API server; one that another replica
// asks for by an object is two, and the second costs the API server more than twice what the first does. Whenever the leader
// cannot be asked in this way, the object is the way that is left, and nothing is remembered on either side that a crash could
// lose: the name of the lease goes with the request, so that what became of it can be settled at the API server.
//
// Both sides prove with a key that only replicas of one installation know who they are, and nobody else can read what they
// say. A caller's token never goes this way; the replica that was called has authenticated and authorized the caller.
package peer

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
)

const (
	// DefaultAddress is where a leader is asked by the other replicas.
	DefaultAddress = ":8091"

	// Paths of the two requests that there are.
	pathLease, pathNotice = "/lease", "/notice"
	// headerVersion has the version of the operator. Replicas of two versions do not ask each other: what a field of one means
	// the other need not know.
	headerVersion = "Egress-Operator-Version"
	// maxBody bounds a request, in bytes; the HTTP API admits less. maxAnswer bounds an answer: it has the labels of a Proxy,
	// which are as large as etcd admits.
	maxBody, maxAnswer = 1 << 20, 8 << 20
)

var (
	// ErrNotAsked says that the leader certainly did not and will not act.
	ErrNotAsked = errors.New("the leader was not asked")
	// ErrUnknown says that the leader may or may not have made the lease, now or soon.
	ErrUnknown = errors.New("the leader has not answered")
)

// Call asks for a lease.
type Call struct {
	Request httpapi.LeaseRequest `json:"request"`
	// Identity is the request's; it is no part of its JSON.
	Identity string `json:"identity"`
	// Name of the lease. It is nobody else's.
	Name string `json:"name"`
}

// Answer is what the leader decided: a lease, or the error that the caller gets.
type Answer struct {
	Lease    httpapi.Lease  `json:"lease"`
	Replayed bool           `json:"replayed"`
	Error    *httpapi.Error `json:"error,omitempty"`
}

// Notice names what a call to another replica has written. What its caller asks next, of any replica, may depend on that, and
// the leader's watch tells of it a little later. It may be late, but what it says is stored already.
type Notice struct {
	// Released is a lease that was deleted, because its holder gave it back or has no use for it; without a UID: there is none.
	Released httpapi.Ref `json:"released"`
	// Withdrawn says that nobody was told of that lease: its key is as if it had never been used.
	Withdrawn bool `json:"withdrawn"`
	// Proxy is one whose status was written, or which that lease had for itself; without a name: there is none.
	Proxy types.NamespacedName `json:"proxy"`
}

// Times of the short cut.
const (
	// connectTimeout bounds the time until a connection can be used. The leader is in the same cluster.
	connectTimeout = time.Second
	// avoidance is how long a leader is not asked again that could not be reached.
	avoidance = 5 * time.Second
	// pingAfter and pingTimeout find a connection whose other end has gone without a word.
	pingAfter, pingTimeout = 3 * time.Second, 3 * time.Second
)
