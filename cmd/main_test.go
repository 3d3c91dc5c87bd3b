package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongUseIsOneLine: every wrong flag, argument or file is one line on stderr that names it, and exit code 1, before
// any API server is looked for.
func TestWrongUseIsOneLine(t *testing.T) {
	// A configuration that leads nowhere: what gets past the flags fails here, with another message.
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("POD_NAMESPACE", "operator")
	write := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := write("token", "secret\n")
	empty := write("empty", "")
	ok := "--api-auth=none"
	for _, test := range []struct{ name, args, want string }{
		{"no subcommand", "", "a subcommand is required"},
		{"unknown subcommand", "kore", "kore"},
		{"unknown flag", "core --nope", "--nope"},
		{"stray argument", "core x " + ok, `"x"`},
		{"no authentication", "core", "--api-auth"},
		{"unknown authentication", "core --api-auth=magic", "--api-auth"},
		{"none with token", "core --api-auth=none,token --api-token-file=" + token, "--api-auth"},
		{"token without file", "core --api-auth=token", "--api-token-file"},
		{"token file missing", "core --api-auth=token --api-token-file=/nonexistent", "--api-token-file"},
		{"token file empty", "core --api-auth=token --api-token-file=" + empty, "--api-token-file"},
		{"API address", "core --api-bind-address=8090 " + ok, "--api-bind-address"},
		{"peer address", "core --peer-bind-address=8091 " + ok, "--peer-bind-address"},
		{"advertised address", "core --peer-advertise-address=10.0.0.1 " + ok, "--peer-advertise-address"},
		{"advertised address that is none", "core --peer-advertise-address=a%b:1 " + ok, "--peer-advertise-address"},
		{"advertised port 0", "core --peer-advertise-address=10.0.0.1:0 " + ok, "--peer-advertise-address"},
		{"any port for the peers", "core --peer-bind-address=127.0.0.1:0 " + ok, "--peer-bind-address"},
		{"advertised address without a host", "core --peer-advertise-address=:8091 " + ok, "--peer-advertise-address"},
		{"API port", "core --api-bind-address=:99999 " + ok, "--api-bind-address"},
		{"metrics address", "core --metrics-bind-address=x " + ok, "--metrics-bind-address"},
		{"probe address", "core --health-probe-bind-address=x " + ok, "--health-probe-bind-address"},
		{"certificate alone", "core --api-tls-cert-file=" + token + " " + ok, "--api-tls-key-file"},
		{"certificate that is none", "core --api-tls-cert-file=" + token + " --api-tls-key-file=" + token + " " + ok, "--api-tls-cert-file"},
		{"default namespace", "core --default-namespace=A_B " + ok, "--default-namespace"},
		{"watched namespace", "core --watch-namespaces=a,B_C " + ok, "--watch-namespaces"},
		{"own namespace", "core --leader-election-namespace=A_B " + ok, "--leader-election-namespace"},
		{"cluster id", "core --cluster-id=a/b " + ok, "--cluster-id"},
		{"controller name", "core --controller-name= " + ok, "--controller-name"},
		{"log level", "core --log-level=loud " + ok, "--log-level"},
		{"health URL", "core --health-check-urls=http://a.example " + ok, "--health-check-urls"},
		{"health CA missing", "core --health-check-ca-file=/nonexistent " + ok, "--health-check-ca-file"},
		{"health CA that is none", "core --health-check-ca-file=" + token + " " + ok, "--health-check-ca-file"},
		{"proxy range", "core --allow-proxy-cidrs=10.0.0.0 " + ok, "--allow-proxy-cidrs"},
		{"target range", "core --allow-probe-target-cidrs=x " + ok, "--allow-probe-target-cidrs"},
		{"providers file missing", "core --providers-config=/nonexistent " + ok, "--providers-config"},
		{"providers file", "core --providers-config=" + write("p", "providers:\n- {name: a, type: kubernetes, kubernetes: {imag: b}}\n") + " " + ok, "kubernetes.imag"},
		{"no kubeconfig", "core --kubeconfig=/nonexistent " + ok, "--kubeconfig"},
		{"provider without type", "provider", "TYPE"},
		{"provider of unknown type", "provider azure", `"azure"`},
		{"import without file", "import-config", "FILE"},
		{"import of a missing file", "import-config /nonexistent", "/nonexistent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := run(context.Background(), strings.Fields(test.args), &stdout, &stderr)
			message := stderr.String()
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if strings.Count(message, "\n") != 1 || !strings.HasPrefix(message, "error: ") {
				t.Errorf("not one line: %q", message)
			}
			if !strings.Contains(message, test.want) {
				t.Errorf("%q does not name %s", message, test.want)
			}
		})
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, args := range []string{"version", "core --help", "provider --help", "dev --help", "import-config --help"} {
		var stdout, stderr strings.Builder
		if code := run(context.Background(), strings.Fields(args), &stdout, &stderr); code != 0 || stdout.Len() == 0 {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", args, code, stdout.String(), stderr.String())
		}
	}
}
