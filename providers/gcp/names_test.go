package gcp

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"crawl.example.com/egress-proxies-operator/providers"
)

var (
	legalKey   = regexp.MustCompile(`^[a-z][-_a-z0-9]{0,62}$`)
	legalValue = regexp.MustCompile(`^[-_a-z0-9]{0,63}$`)
)

// checkMark: a mark becomes legal labels, and is read back exactly, so that different marks have different labels.
func checkMark(t *testing.T, m mark, user map[string]string) {
	t.Helper()
	labels := m.labels(user)
	if len(labels) > maxLabels {
		t.Fatalf("%d labels", len(labels))
	}
	for key, value := range labels {
		if !legalKey.MatchString(key) || !legalValue.MatchString(value) {
			t.Errorf("illegal label %q=%q", key, value)
		}
	}
	if back := readMark(labels); back != m {
		t.Errorf("got back %+v, want %+v", back, m)
	}
}

// FuzzMark: any names and ids, also those that Kubernetes does not allow.
func FuzzMark(f *testing.F) {
	f.Add("cluster", "default", "px", "6b1d2f1e-60a5-4b0a-9c0e-3d5a7d1f0c11", "gcp-eu", "v1-0123456789abcdef")
	f.Add("Cluster_ID.x", "a", "a.b", "u", "class.with.dots", "")
	f.Add("_5f", "_", "-", "a_2eb", strings.Repeat("a.", 31)+"b", strings.Repeat("h", 64))
	f.Fuzz(func(t *testing.T, cluster, namespace, name, uid, class, hash string) {
		for _, text := range []string{cluster, namespace, name, uid, class, hash} {
			if len(text) > 64 {
				t.Skip("longer than any of them can be")
			}
		}
		m := mark{owner: providers.Owner{ClusterID: cluster, Namespace: namespace, Name: name, UID: types.UID(uid)}, class: class, hash: hash}
		checkMark(t, m, map[string]string{"geo": "eu", name: hash, labelName + "-2": "x"})
	})
}

// FuzzInstanceName: any name becomes a legal name of a machine, and Proxies of another UID or cluster get other ones.
func FuzzInstanceName(f *testing.F) {
	f.Add("cluster", "px", "u1", "cluster", "px", "u2")
	f.Add("c", strings.Repeat("a", 63), "", "d", strings.Repeat("a", 63), "")
	f.Add("c", "1.2.3", "6b1d2f1e-60a5-4b0a-9c0e-3d5a7d1f0c11", "c", "1-2-3", "6b1d2f1e-60a5-4b0a-9c0e-3d5a7d1f0c12")
	f.Add("a", "px", "b/c", "a.b", "px", "c")
	f.Fuzz(func(t *testing.T, cluster, name, uid, otherCluster, otherName, otherUID string) {
		if strings.Contains(cluster+otherCluster, "/") {
			t.Skip("no id of a cluster")
		}
		one, other := providers.InstanceName(cluster, name, types.UID(uid)), providers.InstanceName(otherCluster, otherName, types.UID(otherUID))
		for _, made := range []string{one, other} {
			if !label1035.MatchString(made) {
				t.Errorf("%q is no name of a machine", made)
			}
		}
		if (cluster != otherCluster || uid != otherUID) && one == other {
			t.Errorf("%q in %q and %q in %q have the name %s", uid, cluster, otherUID, otherCluster, one)
		}
	})
}

// namesSeed makes the names of TestGT1_AnyNames. The fuzz tests above look further.
const namesSeed = 20260101

// word makes a name that Kubernetes allows: of letters, and inside also of separators.
func word(r *rand.Rand, length int, letters, separators string) string {
	var b strings.Builder
	for i := range length {
		from := letters
		if i > 0 && i < length-1 && !strings.HasSuffix(b.String(), ".") {
			from += separators
		}
		b.WriteByte(from[r.IntN(len(from))])
	}
	return strings.ReplaceAll(b.String(), "-.", "--")
}

// TestGT1_AnyNames: whatever Kubernetes allows as names of Proxy, namespace, class and cluster becomes a legal name and legal
// labels of a machine. Proxies that differ in one of name, namespace, UID, cluster or class are told apart, also where only the
// last character or the kind of a separator differs.
func TestGT1_AnyNames(t *testing.T) {
	const lower, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
	r := rand.New(rand.NewPCG(namesSeed, 0))
	names, labels := map[string]string{}, map[string]string{}
	check := func(m mark) {
		t.Helper()
		for what, wrong := range map[string][]string{
			"name " + m.owner.Name: validation.IsDNS1123Subdomain(m.owner.Name), "namespace " + m.owner.Namespace: validation.IsDNS1123Label(m.owner.Namespace),
			"class " + m.class: validation.IsDNS1123Subdomain(m.class), "cluster " + m.owner.ClusterID: validation.IsValidLabelValue(m.owner.ClusterID),
		} {
			if len(wrong) > 0 {
				t.Fatalf("the test itself makes an illegal %s: %v", what, wrong)
			}
		}
		checkMark(t, m, nil)
		name := providers.InstanceName(m.owner.ClusterID, m.owner.Name, m.owner.UID)
		if !label1035.MatchString(name) {
			t.Errorf("%q is no name of a machine", name)
		}
		identity := m.owner.ClusterID + "/" + string(m.owner.UID)
		if before, ok := names[name]; ok && before != identity {
			t.Errorf("%s and %s have the name %s", before, identity, name)
		}
		names[name] = identity
		if text, all := fmt.Sprint(m.labels(nil)), fmt.Sprintf("%+v", m); labels[text] != "" && labels[text] != all {
			t.Errorf("%s and %s have the labels %s", labels[text], all, text)
		} else {
			labels[text] = all
		}
	}
	made := 0
	for range 1000 {
		length := func() int { return 1 + r.IntN(63) }
		m := mark{
			owner: providers.Owner{
				ClusterID: word(r, length(), lower+digits+strings.ToUpper(lower), "-_."), Namespace: word(r, length(), lower+digits, "-"),
				Name: word(r, length(), lower+digits, "-."), UID: types.UID(word(r, 36, digits+"abcdef", "")),
			},
			class: word(r, length(), lower+digits, "-."), hash: "v1-" + word(r, 16, digits+"abcdef", ""),
		}
		check(m)
		for _, change := range []func(*mark, func(string) string){
			func(m *mark, f func(string) string) { m.owner.ClusterID = f(m.owner.ClusterID) },
			func(m *mark, f func(string) string) { m.owner.Namespace = f(m.owner.Namespace) },
			func(m *mark, f func(string) string) { m.owner.Name = f(m.owner.Name) },
			func(m *mark, f func(string) string) { m.owner.UID = types.UID(f(string(m.owner.UID))) },
			func(m *mark, f func(string) string) { m.class = f(m.class) },
		} {
			for _, how := range []func(string) string{
				func(s string) string { return s[:len(s)-1] + string(lower[r.IntN(len(lower))]) },
				func(s string) string { return (s + "0")[:min(len(s)+1, 63)] },
				func(s string) string { return strings.Replace(s, "-", "0", 1) },
				func(s string) string { return strings.Replace(s, ".", "-", 1) },
			} {
				near := m
				change(&near, how)
				check(near)
				made++
			}
		}
	}
	t.Logf("%d neighbours; %d names, %d marks", made, len(names), len(labels))
}
