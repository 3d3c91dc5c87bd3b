package ledger

import "k8s.io/apimachinery/pkg/labels"

// class is the proxies of one namespace with the same labels: a selector is matched once per class, not once per proxy.
// Those that can take a lease stand in buckets by load; within a bucket the least recently changed is first. So picking
// costs as much with ten thousand proxies as with a hundred.
type class struct {
	key     string
	labels  labels.Set
	members map[*proxy]struct{}
	// buckets by load. lowest is a lower bound of the first bucket that is not empty.
	buckets []bucket
	lowest  int
	open    int
}

// bucket is a list of proxies with the same load.
type bucket struct{ first, last *proxy }

// place puts a proxy into the bucket of its load, at the end; not at all when it can take no lease.
func (c *class) place(p *proxy) {
	load := p.load()
	if p.closed != "" || (p.capacity > 0 && load >= p.capacity) || p.usage.exclusives > 0 ||
		p.object.Status.Exclusive != nil || p.claim != "" {
		return
	}
	for len(c.buckets) <= load {
		c.buckets = append(c.buckets, bucket{})
	}
	b := &c.buckets[load]
	p.level, p.prev, p.next = load, b.last, nil
	if b.last != nil {
		b.last.next = p
	} else {
		b.first = p
	}
	b.last = p
	if c.open == 0 || load < c.lowest {
		c.lowest = load
	}
	c.open++
}

// take removes a proxy from its bucket, if it is in one.
func (c *class) take(p *proxy) {
	if p.level < 0 {
		return
	}
	b := &c.buckets[p.level]
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		b.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		b.last = p.prev
	}
	p.level, p.prev, p.next = -1, nil, nil
	c.open--
	for c.open > 0 && c.buckets[c.lowest].first == nil {
		c.lowest++
	}
	if c.open == 0 {
		c.lowest, c.buckets = 0, c.buckets[:0]
	}
}
