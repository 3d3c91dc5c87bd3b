package vm

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/seed"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// What a machine is told to be doing while it is built. MessagesAreStable allows five per state.
const (
	messageImage     = "the image is being downloaded to the host"
	messageImageHalf = "the image is being downloaded to the host; more than half of it is there"
	messageImageFail = "the image could not be downloaded yet; it is tried again"
	messageSeed      = "the seed cannot be written: is there room in the manager's temporary directory?"
	messageFailed    = "the making of the machine did not come to an end"
)

// build is the making of one incarnation.
type build struct {
	req    Request
	record record
	// ctx ends the calls of the build at once, quit the build between two of them: a call that is given up may be carried out
	// later, when nobody expects what it makes.
	ctx    context.Context
	cancel context.CancelFunc
	quit   chan struct{}
	// done is closed when the build has ended, waits when it has to wait for its image.
	done, waits       chan struct{}
	quitting, waiting sync.Once
	// made is set before the first call that makes something; for the build's own goroutine.
	made bool
	// promised is how far the disk may grow, as long as no volume shows it; guarded by Engine.mu.
	promised int64

	mu      sync.Mutex
	message string
	err     error
}

// errQuit ends a build that is not wanted any more.
var errQuit = errors.New("the build was stopped")

func (b *build) stop() { b.quitting.Do(func() { close(b.quit) }) }

// wanted tells between two steps whether to go on.
func (b *build) wanted() error {
	select {
	case <-b.quit:
		return errQuit
	default:
		return b.ctx.Err()
	}
}

func (b *build) say(message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.message = message
}

// progress is what an instance looks like that is being built, or whose building has failed and left something behind.
func (b *build) progress() (providers.State, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return providers.StateFailed, b.message
	}
	return providers.StatePending, b.message
}

// outcome of a build that has ended.
func (b *build) outcome() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// prepare notes that an incarnation is about to be built. Its spans hang below those of the call, which it outlives.
func (e *Engine) prepare(ctx context.Context, r record, req Request) (*build, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, providers.NewError(providers.Unavailable, "create instance", "the provider of the class is closing", nil)
	}
	b := &build{req: req, record: r, done: make(chan struct{}), waits: make(chan struct{}), quit: make(chan struct{}), message: messageElsewhere}
	b.ctx, b.cancel = context.WithCancel(trace.ContextWithSpanContext(e.ctx, trace.SpanContextFromContext(ctx)))
	e.builds[r.UUID] = b
	return b, nil
}

// abandon forgets a build that was not started.
func (e *Engine) abandon(b *build) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b.cancel()
	delete(e.builds, b.record.UUID)
}

// start runs a build beside the call.
func (e *Engine) start(b *build) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		b.cancel()
	}
	e.wg.Go(func() { e.run(b) })
}

// run builds, and takes back what it has built when that fails for good. What only did not get through stays as it is: the
// record says whose it is, and the next deletion removes it.
func (e *Engine) run(b *build) {
	defer e.Wake(b.req.Owner)
	defer close(b.done)
	defer b.cancel()
	err := fault.Classify("create instance", e.steps(b))
	if err == nil {
		e.abandon(b)
		return
	}
	if b.wanted() == nil {
		// Nobody else tells: the call that asked for it may have returned long ago.
		e.Logger.Info("Building a machine failed", "host", e.Host.Name, "instance", b.req.Name, "error", providers.RawText(err))
	}
	switch providers.ReasonOf(err) {
	case providers.Capacity, providers.InvalidSpec, providers.Auth:
		// Before it is gone: whoever finds nothing asks why.
		e.remember(b.record.UUID, err)
		if e.takeBack(b) {
			b.mu.Lock()
			b.err = err
			b.mu.Unlock()
			e.abandon(b)
			return
		}
		// Something is left, which a refusal would deny.
		err = providers.NewError(providers.Unavailable, "create instance", messageFailed, err)
	}
	b.mu.Lock()
	b.err, b.message = err, messageFailed
	b.mu.Unlock()
	e.kept(b)
	if b.made {
		// A call whose answer was lost may be carried out after the machine was removed.
		e.Lost.add(b.record, e.Clock.Now())
		e.clean(b)
	}
}

// takeBack removes what a build has made.
func (e *Engine) takeBack(b *build) bool {
	return b.ctx.Err() == nil && e.Control.Do(b.ctx, func(c *rpc.Conn) error { return remove(b.ctx, c, b.record) }) == nil
}

// steps of a build after the record: disk, seed, start.
func (e *Engine) steps(b *build) error {
	base, err := e.awaitImage(b)
	if err != nil {
		return err
	}
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	case <-b.quit:
		return errQuit
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	ctx, cancel := context.WithTimeout(b.ctx, BuildLimit)
	defer cancel()
	b.say(messageElsewhere)
	if err := e.reserveImage(ctx, b, base.Capacity); err != nil {
		return err
	}
	iso, err := seed.Build(seed.Input{
		InstanceID: b.record.UUID, Hostname: b.record.Name, MAC: b.record.MAC, UserData: b.req.UserData,
		VendorData: e.VendorData, InstallGuestAgent: e.InstallGuestAgent,
	})
	if err != nil {
		return providers.NewError(providers.Unavailable, "create instance", messageSeed, err)
	}
	return e.Control.Do(ctx, func(c *rpc.Conn) error {
		if err := b.wanted(); err != nil {
			return err
		}
		if err := e.volumes(ctx, c, b, base, iso); err != nil {
			return err
		}
		b.say(messageStarting)
		if err := b.wanted(); err != nil {
			return err
		}
		if e.Autostart {
			if err := c.DomainSetAutostart(ctx, b.record.domain, true); err != nil {
				return err
			}
		}
		return c.DomainCreate(ctx, b.record.domain)
	})
}

// volumes makes the disk and the seed.
func (e *Engine) volumes(ctx context.Context, c *rpc.Conn, b *build, base images.Base, iso []byte) error {
	pool, err := c.PoolLookupByName(ctx, b.record.Pool)
	if err != nil {
		return err
	}
	disk, err := virtxml.Volume{
		Name: b.record.Disk, Format: "qcow2", Capacity: max(e.DiskBytes, base.Capacity), BackingPath: base.Path, BackingFormat: base.Format,
	}.Marshal()
	if err != nil {
		return err
	}
	if err := b.wanted(); err != nil {
		return err
	}
	b.made = true
	if _, err := c.VolumeCreate(ctx, pool, disk); err != nil {
		return err
	}
	e.kept(b)
	if err := b.wanted(); err != nil {
		return err
	}
	text, err := virtxml.Volume{Name: b.record.Seed, Format: "raw", Capacity: int64(len(iso))}.Marshal()
	if err != nil {
		return err
	}
	volume, err := c.VolumeCreate(ctx, pool, text)
	if err != nil {
		return err
	}
	return c.VolumeUpload(ctx, volume, bytes.NewReader(iso), int64(len(iso)))
}

// awaitImage waits until the image is on the host. How long that may take is the operator's to say.
func (e *Engine) awaitImage(b *build) (images.Base, error) {
	for {
		signal := e.imageSignal()
		var base images.Base
		var progress images.Progress
		err := e.Control.Do(b.ctx, func(c *rpc.Conn) (err error) {
			base, progress, err = e.Images.Ensure(b.ctx, c, e.Host.Name, e.Host.Pool, b.req.Image)
			return err
		})
		switch {
		case downloadFailed(err):
			b.say(messageImageFail)
		case err != nil && b.ctx.Err() == nil && providers.ReasonOf(fault.Classify("", err)) == providers.Unavailable:
			// The connection was lost; nothing is half made yet, so there is time.
		case err != nil:
			return base, err
		case progress.Done:
			return base, nil
		case progress.Percent > 50:
			b.say(messageImageHalf)
		default:
			b.say(messageImage)
		}
		b.waiting.Do(func() { close(b.waits) })
		select {
		case <-signal:
		case <-e.Clock.After(imagePoll):
		case <-b.quit:
			return base, errQuit
		case <-b.ctx.Done():
			return base, b.ctx.Err()
		}
	}
}
