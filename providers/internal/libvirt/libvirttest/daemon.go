package libvirttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// StartLimit bounds the start of a daemon on a busy machine.
	StartLimit = 90 * time.Second

	// leftLimit bounds the end of a killed daemon's children.
	leftLimit = 10 * time.Second

	pollPeriod = 10 * time.Millisecond
	// nobody is the user of the hosts when the test is run by root.
	nobody = 65534
)

// Daemon is a process that can be stopped and started again.
type Daemon struct {
	name    string
	program string
	args    []string
	env     []string
	log     string
	ready   func() error
	// privileged says: it stays root when the test is run by root.
	privileged bool

	mu      sync.Mutex
	process *os.Process
	ended   chan struct{}
	// left are processes of killed ones that may still run, as sessions of an sshd do.
	left []int
}

// Start starts the daemon and waits until it answers; if it runs already it does nothing.
func (d *Daemon) Start(t testing.TB) {
	t.Helper()
	if err := d.start(); err != nil {
		t.Fatalf("start %s: %v\n%s", d.name, err, d.Log())
	}
}

func (d *Daemon) start() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process != nil {
		return nil
	}
	output, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	command := exec.Command(d.program, d.args...)
	command.Dir, command.Env = filepath.Dir(d.log), d.env
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = attributes()
	if os.Getuid() == 0 && !d.privileged {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait()
	}()
	d.process, d.ended = command.Process, ended
	if err := await(StartLimit, ended, d.ready); err != nil {
		d.kill()
		return err
	}
	return nil
}

// Kill kills the daemon's own process. What it has started goes on: a session of sshd outlives its restart, as it does
// under systemd.
func (d *Daemon) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
}

func (d *Daemon) kill() {
	if d.process == nil {
		return
	}
	d.left = append(d.left, children(d.process.Pid)...)
	_ = d.process.Kill()
	<-d.ended
	d.process = nil
}

// Restart kills the daemon and starts it again.
func (d *Daemon) Restart(t testing.TB) {
	t.Helper()
	d.Kill()
	d.Start(t)
}

// Freeze stops the daemon as it stands (SIGSTOP): its sockets stay, and take connections, but nothing answers.
func (d *Daemon) Freeze() { d.signal(syscall.SIGSTOP) }

// Thaw lets it go on.
func (d *Daemon) Thaw() { d.signal(syscall.SIGCONT) }

func (d *Daemon) signal(s syscall.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process != nil {
		_ = d.process.Signal(s)
	}
}

// Children is how many processes of the daemon's run beside its own. Of sshd these are the connections.
func (d *Daemon) Children() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process == nil {
		return 0
	}
	return len(children(d.process.Pid))
}

// Log is the end of what the daemon has written.
func (d *Daemon) Log() string {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-8<<10):])
}

// close kills everything that is left.
func (d *Daemon) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
	// These end by themselves as soon as their connections are gone, which they are by now.
	_ = await(leftLimit, nil, func() error {
		for _, pid := range d.left {
			if running(pid) {
				return fmt.Errorf("process %d runs", pid)
			}
		}
		return nil
	})
}

// await polls until done gives no error; it gives up when a process has ended, or after limit.
func await(limit time.Duration, ended <-chan struct{}, done func() error) error {
	deadline, tick := time.After(limit), time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ended:
			return errors.New("it has ended")
		case <-deadline:
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}

// Await polls until done gives no error, or fails the test after StartLimit.
func Await(t testing.TB, done func() error) {
	t.Helper()
	if err := await(StartLimit, nil, done); err != nil {
		t.Fatal(err)
	}
}
