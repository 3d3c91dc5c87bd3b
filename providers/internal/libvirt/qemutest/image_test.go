//go:build libvirt

package qemutest

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"crawl.example.com/egress-proxies-operator/internal/libvirtlab"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// bases are the files of base images of kvm2 in a host's pool, markers included.
func bases(t *testing.T, h libvirtlab.Host) []string {
	t.Helper()
	return slices.DeleteFunc(h.Files(t), func(name string) bool { return !strings.HasPrefix(name, "kvm2-base-") })
}

// forget removes the base images from a host, as before the first use.
func forget(t *testing.T, h libvirtlab.Host) {
	t.Helper()
	for _, name := range bases(t, h) {
		h.Virsh(t, "vol-delete", "--pool", h.Pool, name)
	}
}

// uploading waits until part of the image is on the host, and returns the name of the volume.
func uploading(t *testing.T, h libvirtlab.Host) (name string) {
	t.Helper()
	libvirtlab.Eventually(t, libvirtlab.SettleLimit, "the upload is under way", func(context.Context) error {
		found := bases(t, h)
		if len(found) != 1 {
			return fmt.Errorf("there are %v", found)
		}
		name = found[0]
		if size := strings.TrimSpace(h.Exec(t, "stat", "-c", "%s", h.PoolPath+"/"+name)); len(size) < len("1000000") {
			return fmt.Errorf("it has %s bytes", size)
		}
		return nil
	})
	return name
}

// TestV15_MachinesThatRaceForAnImageShareOneDownloadPerHost with three machines on two hosts.
func TestV15_MachinesThatRaceForAnImageShareOneDownloadPerHost(t *testing.T) {
	hosts := libvirtlab.Hosts(t)[:2]
	for _, h := range hosts {
		forget(t, h)
	}
	s := mini(t, kvm2.NewFactory, hosts...)
	c := s.open(t)
	requests := []providers.CreateRequest{
		c.request("race-a", hosts[0].Name, ""), c.request("race-b", hosts[0].Name, ""), c.request("race-c", hosts[1].Name, ""),
	}
	errs := c.createAtOnce(t, requests)
	for i, r := range requests {
		if errs[i] != nil {
			t.Fatalf("create %s: %v", r.Owner.Name, errs[i])
		}
	}
	for _, r := range requests {
		c.serving(t, r, libvirtlab.BootLimit)
	}
	if got := s.source.count(); got != len(hosts) {
		t.Errorf("%d downloads for %d hosts", got, len(hosts))
	}
	for _, h := range hosts {
		if got := bases(t, h); len(got) != 2 {
			t.Errorf("%s has %v, want an image and its marker", h.Name, got)
		}
	}
}

const uploader = "EGRESS_LAB_UPLOADER"

// TestUploaderThatIsKilled is the process that TestV17 kills.
func TestUploaderThatIsKilled(t *testing.T) {
	url, sum, _ := strings.Cut(os.Getenv(uploader), " ")
	if url == "" {
		t.Skip("it is part of TestV17")
	}
	s := setup{factory: kvm2.NewFactory, hosts: libvirtlab.Hosts(t)[:1], source: &source{sum: sum}, memory: "192Mi"}
	s.source.Server = &httptest.Server{URL: url}
	c := s.open(t)
	if _, err := c.Create(t.Context(), c.request("killed-uploader", s.hosts[0].Name, "")); err != nil {
		t.Fatal(err)
	}
	<-t.Context().Done()
}

// TestV17_AnUploadCutByACrashIsReplacedAndNeverCloned: the manager is killed in the middle of it.
func TestV17_AnUploadCutByACrashIsReplacedAndNeverCloned(t *testing.T) {
	h := libvirtlab.Hosts(t)[0]
	forget(t, h)
	s := mini(t, kvm2.NewFactory, h)
	release := s.source.hold()
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	manager := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestUploaderThatIsKilled$")
	manager.Env = append(os.Environ(), uploader+"="+s.source.URL+" "+s.source.sum)
	manager.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := manager.Start(); err != nil {
		t.Fatal(err)
	}
	half := uploading(t, h)
	cancel()
	if err := manager.Wait(); err == nil {
		t.Fatal("the process ended by itself")
	}
	release()

	c := s.open(t)
	r := c.request("after-crash", h.Name, "")
	c.create(t, r)
	// A machine on the half image would not boot.
	c.serving(t, r, libvirtlab.BootLimit)
	if got := bases(t, h); !slices.Contains(got, half) || len(got) != 2 || s.source.count() != 2 {
		t.Errorf("%v after %d downloads, want %s anew and its marker after 2", got, s.source.count(), half)
	}
	// What the killed process had begun is found, and is no machine that runs.
	old := c.request("killed-uploader", h.Name, "")
	if i, err := c.get(t.Context(), ref(old)); err != nil || i.State == providers.StateRunning {
		t.Errorf("the machine that was begun: %s, %v", i.State, err)
	}
	c.remove(t, ref(old))
}

// TestV18_ABaseThatDisappearsIsNoticed: after the download, and in the middle of it, of which libvirt says nothing.
func TestV18_ABaseThatDisappearsIsNoticed(t *testing.T) {
	h := libvirtlab.Hosts(t)[0]

	t.Run("afterwards", func(t *testing.T) {
		forget(t, h)
		s := mini(t, kvm2.NewFactory, h)
		c := s.open(t)
		first := c.request("first", h.Name, "")
		c.create(t, first)
		c.await(t, first, libvirtlab.BootLimit, providers.StateRunning)
		c.remove(t, ref(first))
		for _, name := range bases(t, h) {
			if !strings.HasSuffix(name, ".ok") {
				h.Exec(t, "rm", h.PoolPath+"/"+name)
			}
		}
		second := c.request("second", h.Name, "")
		c.create(t, second)
		c.serving(t, second, libvirtlab.BootLimit)
		if got := s.source.count(); got != 2 {
			t.Errorf("%d downloads, want 2", got)
		}
	})

	t.Run("under the upload", func(t *testing.T) {
		forget(t, h)
		s := mini(t, kvm2.NewFactory, h)
		release := s.source.hold()
		defer release()
		c := s.open(t)
		r := c.request("under", h.Name, "")
		c.create(t, r)
		h.Exec(t, "rm", h.PoolPath+"/"+uploading(t, h))
		release()
		c.serving(t, r, libvirtlab.BootLimit)
		if got := s.source.count(); got != 2 {
			t.Errorf("%d downloads, want 2", got)
		}
	})
}
