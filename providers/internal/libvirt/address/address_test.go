package address

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/digitalocean/go-libvirt"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

const mac = "52:54:00:ab:cd:ef"

// answer is what one source says.
type answer struct {
	interfaces []libvirt.DomainInterface
	err        error
}

// host answers by source and notes in which order it was asked.
type host struct {
	lease, agent, arp answer
	asked             []uint32
}

func (h *host) DomainAddresses(ctx context.Context, _ libvirt.Domain, source uint32) ([]libvirt.DomainInterface, error) {
	h.asked = append(h.asked, source)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a := []answer{h.lease, h.agent, h.arp}[source]
	return a.interfaces, a.err
}

func nic(hardware string, addresses ...string) libvirt.DomainInterface {
	i := libvirt.DomainInterface{Name: "x", Hwaddr: libvirt.OptString{hardware}}
	for _, a := range addresses {
		i.Addrs = append(i.Addrs, libvirt.DomainIPAddr{Addr: a, Prefix: 24})
	}
	return i
}

func says(interfaces ...libvirt.DomainInterface) answer { return answer{interfaces: interfaces} }

func fails(code int) answer {
	return answer{err: &rpc.Error{Procedure: "DomainInterfaceAddresses", Code: code, Err: errors.New("refused")}}
}

var lost = answer{err: &rpc.Error{Procedure: "DomainInterfaceAddresses", Lost: true, Err: errors.New("no answer")}}

// TestV23_AddressFromWhicheverSourceKnows: the codes are those that libvirt gives in these situations.
func TestV23_AddressFromWhicheverSourceKnows(t *testing.T) {
	lo := nic("00:00:00:00:00:00", "127.0.0.1", "::1")
	for name, c := range map[string]struct {
		host
		want  []string
		asked int
	}{
		"a lease":                      {host{lease: says(nic(mac, "10.0.0.5"))}, []string{"10.0.0.5"}, 1},
		"on a bridge the agent":        {host{agent: says(lo, nic(mac, "10.0.0.6"))}, []string{"10.0.0.6"}, 2},
		"without an agent ARP":         {host{agent: fails(rpc.AgentUnresponsive), arp: says(nic(mac, "10.0.0.7"))}, []string{"10.0.0.7"}, 3},
		"none yet":                     {host{agent: fails(rpc.AgentUnresponsive)}, nil, 3},
		"a stopped machine":            {host{lease: fails(rpc.OperationInvalid), agent: fails(rpc.OperationInvalid), arp: fails(rpc.OperationInvalid)}, nil, 3},
		"a broken ARP":                 {host{agent: fails(rpc.AgentUnresponsive), arp: fails(rpc.InternalError)}, nil, 3},
		"no lease source":              {host{lease: fails(rpc.ArgumentUnsupported), agent: says(nic(mac, "10.0.0.8"))}, []string{"10.0.0.8"}, 2},
		"a guest that hangs":           {host{agent: lost, arp: says(nic(mac, "10.0.0.9"))}, []string{"10.0.0.9"}, 3},
		"an interface without address": {host{lease: says(nic(mac)), agent: says(nic(mac, "10.0.0.10"))}, []string{"10.0.0.10"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Find(t.Context(), &c.host, libvirt.Domain{}, mac)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("it is %q, %v, want %q", got, err, c.want)
			}
			if want := []uint32{0, 1, 2}[:c.asked]; !slices.Equal(c.host.asked, want) {
				t.Errorf("asked were %v, want %v", c.host.asked, want)
			}
		})
	}
}

// TestV23_OddAnswersDoNotConfuse: other interfaces of the guest, addresses that nobody can reach, and no addresses at all.
func TestV23_OddAnswersDoNotConfuse(t *testing.T) {
	for name, c := range map[string]struct {
		interfaces []libvirt.DomainInterface
		want       []string
	}{
		"loopback under our address":   {says(nic(mac, "127.0.0.1", "::1", "::ffff:127.0.0.1")).interfaces, nil},
		"link-local":                   {says(nic(mac, "169.254.3.4", "fe80::1", "fe80::1%eth0")).interfaces, nil},
		"unspecified and multicast":    {says(nic(mac, "0.0.0.0", "::", "224.0.0.1", "ff02::1")).interfaces, nil},
		"no address":                   {says(nic(mac, "", "10.0.0", "10.0.0.1/24", "proxy.example.com")).interfaces, nil},
		"IPv4 comes first":             {says(nic(mac, "2001:db8::1", "10.0.0.9")).interfaces, []string{"10.0.0.9", "2001:db8::1"}},
		"IPv6 alone":                   {says(nic(mac, "fe80::1", "2001:db8::1")).interfaces, []string{"2001:db8::1"}},
		"mapped":                       {says(nic(mac, "::ffff:10.0.0.9", "10.0.0.9")).interfaces, []string{"10.0.0.9"}},
		"twice":                        {says(nic(mac, "10.0.0.9"), nic(mac, "10.0.0.9")).interfaces, []string{"10.0.0.9"}},
		"capitals":                     {says(nic("52:54:00:AB:CD:EF", "10.0.0.9")).interfaces, []string{"10.0.0.9"}},
		"other hardware":               {says(nic("02:42:00:00:00:01", "172.17.0.1"), nic(mac, "10.0.0.9")).interfaces, []string{"10.0.0.9"}},
		"other hardware only":          {says(nic("02:42:00:00:00:01", "172.17.0.1")).interfaces, nil},
		"an interface without its MAC": {[]libvirt.DomainInterface{{Name: "tun0", Addrs: []libvirt.DomainIPAddr{{Addr: "10.8.0.1"}}}}, nil},
		"more than the contract takes": {
			says(nic(mac, "10.0.0.9", "10.0.0.8", "10.0.0.7", "10.0.0.6", "10.0.0.5", "10.0.0.4", "10.0.0.3", "10.0.0.2", "10.0.0.1")).interfaces,
			[]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Find(t.Context(), &host{agent: answer{interfaces: c.interfaces}}, libvirt.Domain{}, mac)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("it is %q, %v, want %q", got, err, c.want)
			}
		})
	}
	upper, err := Find(t.Context(), &host{lease: says(nic(mac, "10.0.0.9"))}, libvirt.Domain{}, "52:54:00:AB:CD:EF")
	if err != nil || len(upper) != 1 {
		t.Errorf("%q, %v", upper, err)
	}
}

// TestV23_OrderOfAnswersDoesNotMatter: a change of the addresses is a write.
func TestV23_OrderOfAnswersDoesNotMatter(t *testing.T) {
	a, b := nic(mac, "10.0.0.9", "2001:db8::2", "2001:db8::1"), nic(mac, "2001:db8::1", "2001:db8::2", "10.0.0.9")
	first, _ := Find(t.Context(), &host{agent: says(a)}, libvirt.Domain{}, mac)
	second, _ := Find(t.Context(), &host{agent: says(b)}, libvirt.Domain{}, mac)
	if !slices.Equal(first, second) || len(first) != 3 {
		t.Errorf("%q and then %q", first, second)
	}
}

// TestV23_UnknownIsNotNone: of a host that does not answer nothing is known; the agent is the guest's, not the host's.
func TestV23_UnknownIsNotNone(t *testing.T) {
	for name, h := range map[string]*host{"lease": {lease: lost}, "arp": {arp: lost}} {
		if got, err := Find(t.Context(), h, libvirt.Domain{}, mac); err == nil || !rpc.IsLost(err) || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := &host{agent: says(nic(mac, "10.0.0.9"))}
	if got, err := Find(ctx, h, libvirt.Domain{}, mac); !errors.Is(err, context.Canceled) || got != nil || len(h.asked) != 1 {
		t.Errorf("cancelled: %q, %v, %d questions", got, err, len(h.asked))
	}
}
