package client

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	squidBinary = "/usr/sbin/squid"
	squidHelper = "/usr/lib/squid/basic_ncsa_auth"
	// squidLimit bounds its start on a busy machine.
	squidLimit = 90 * time.Second
	// bcryptBytes is how much of a password the scheme looks at.
	bcryptBytes = 72
)

// startSquid runs Squid with a password file until the test ends, and gives its address.
func startSquid(t *testing.T, username, password string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a real Squid: not with -short")
	}
	if _, err := os.Stat(squidBinary); err != nil {
		if os.Getenv("EGRESS_REQUIRE_ALL") == "1" {
			t.Fatalf("EGRESS_REQUIRE_ALL=1, but there is no %s (apt-get install squid): %v", squidBinary, err)
		}
		t.Skipf("no %s (apt-get install squid)", squidBinary)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password)[:min(len(password), bcryptBytes)], bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "squid-test-") // t.TempDir cannot be read by the user that Squid becomes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	passwords, config := filepath.Join(dir, "passwords"), filepath.Join(dir, "squid.conf")
	for path, content := range map[string]string{
		passwords: fmt.Sprintf("%s:$2b%s\n", username, hash[len("$2b"):]),
		config: fmt.Sprintf("http_port %s\npid_filename none\naccess_log none\ncache_log %s/cache.log\ncache deny all\ncoredump_dir %s\n"+
			"auth_param basic program %s %s\nauth_param basic children 1\nauth_param basic casesensitive on\nacl authenticated proxy_auth REQUIRED\n"+
			"http_access allow authenticated\nhttp_access deny all\n", address, dir, dir, squidHelper, passwords),
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Squids of one machine share names in /dev/shm unless they are told apart.
	cmd := exec.Command(squidBinary, "-n", "client"+strconv.Itoa(l.Addr().(*net.TCPAddr).Port), "-N", "-f", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its helpers end with it
	if err := cmd.Start(); err != nil {
		t.Fatalf("start Squid: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	})
	deadline, tick := time.After(squidLimit), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return address
		}
		select {
		case <-tick.C:
		case <-ended:
			log, _ := os.ReadFile(filepath.Join(dir, "cache.log"))
			t.Fatalf("Squid ended:\n%s", log)
		case <-deadline:
			t.Fatal("Squid does not listen")
		}
	}
}

// A real Squid takes the credentials, for plain requests and for tunnels, and refuses others.
func TestTransportThroughSquid(t *testing.T) {
	address := startSquid(t, printableName, printable)
	plain, secure := startSite(t, false), startSite(t, true)
	for _, right := range []bool{true, false} {
		s := &stub{terms: Terms{
			Proxy:       Proxy{Namespace: "default", Name: "p", URL: "http://" + address},
			Credentials: NewCredentials(printableName, printable), TTL: time.Hour,
		}}
		if !right {
			s.terms.Credentials = NewCredentials(printableName, "x"+printable)
		}
		lease := s.lease(t, trusting(secure))
		web := &http.Client{Transport: lease.Transport()}
		if right {
			fetch(t, web, plain.URL)
			fetch(t, web, secure.URL)
		} else {
			if answer, err := web.Do(get(t, plain.URL)); err != nil || answer.StatusCode != http.StatusProxyAuthRequired {
				t.Errorf("plain request: %v %v", answer, err)
			} else {
				_ = answer.Body.Close()
			}
			if answer, err := web.Do(get(t, secure.URL)); err == nil {
				_ = answer.Body.Close()
				t.Error("a tunnel for the wrong password")
			}
		}
		closeLease(t, lease)
	}
	if plain.leaks.Load()+secure.leaks.Load() != 0 || plain.hits.Load() != 1 || secure.hits.Load() != 1 {
		t.Errorf("%d leaks, %d and %d hits", plain.leaks.Load()+secure.leaks.Load(), plain.hits.Load(), secure.hits.Load())
	}
}
