package images

import (
	"errors"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// TestTakingBackSparesAFinishedBase: an upload that has hung for long fails after somebody else has completed the base.
func TestTakingBackSparesAFinishedBase(t *testing.T) {
	server := serve(t, whole(qcow2(imageBytes)))
	p := newPool()
	hung, goOn, first := make(chan struct{}), make(chan struct{}), true
	p.written = func(string) error {
		p.mu.Lock()
		mine := first
		first = false
		p.mu.Unlock()
		if !mine {
			return nil
		}
		close(hung)
		<-goOn
		return &rpc.Error{Procedure: "StorageVolUpload", Lost: true, Err: errors.New("no progress")}
	}
	a, b := newRig(t, map[string]*pool{"a": p}), newRig(t, map[string]*pool{"a": p})
	image := Image{Name: "debian", URL: server.URL}
	if _, _, err := a.ensure("a", image); err != nil {
		t.Fatal(err)
	}
	<-hung
	if _, progress, err := b.fetch("a", image); err != nil || !progress.Done {
		t.Fatal(progress, err)
	}
	close(goOn)
	a.ended()
	<-time.After(10 * time.Millisecond)
	if len(usable(p)) != 1 {
		t.Errorf("the base that is in use was deleted: %v, deleted %v", p.names(), p.deleted)
	}
}
