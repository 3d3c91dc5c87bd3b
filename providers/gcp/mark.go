package gcp

import (
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Labels that mark a VM. A value that does not fit into one label goes on in KEY-2, KEY-3 and so on.
const (
	labelPrefix    = "egress-proxy-"
	labelCluster   = labelPrefix + "cluster"
	labelClass     = labelPrefix + "class"
	labelNamespace = labelPrefix + "namespace"
	labelName      = labelPrefix + "name"
	labelUID       = labelPrefix + "uid"
	labelHash      = labelPrefix + "hash"
)

const (
	// maxLabelValue is the longest value of a label, in characters.
	maxLabelValue = 63
	// maxLabels is how many labels a VM may have.
	maxLabels = 64
	// escape starts two hexadecimal digits that stand for one byte.
	escape = '_'
)

var (
	userLabelKey   = regexp.MustCompile(`^[a-z][-_a-z0-9]{0,62}$`)
	userLabelValue = regexp.MustCompile(`^[-_a-z0-9]{0,63}$`)
)

// mark is what is written on a VM to find its owner again.
type mark struct {
	owner       providers.Owner
	class, hash string
}

func markOf(class string, req providers.CreateRequest) mark {
	return mark{owner: req.Owner, class: class, hash: req.Hash}
}

// labels are the mark as labels, with those of the Proxy that fit beside it.
func (m mark) labels(user map[string]string) map[string]string {
	labels := map[string]string{}
	putLabel(labels, labelCluster, m.owner.ClusterID)
	putLabel(labels, labelClass, m.class)
	putLabel(labels, labelNamespace, m.owner.Namespace)
	putLabel(labels, labelName, m.owner.Name)
	putLabel(labels, labelUID, string(m.owner.UID))
	putLabel(labels, labelHash, m.hash)
	for _, key := range slices.Sorted(maps.Keys(user)) {
		if len(labels) < maxLabels && !strings.HasPrefix(key, labelPrefix) && userLabelKey.MatchString(key) && userLabelValue.MatchString(user[key]) {
			labels[key] = user[key]
		}
	}
	return labels
}

// readMark reads the mark of a VM; what is missing is empty.
func readMark(labels map[string]string) mark {
	return mark{
		owner: providers.Owner{
			ClusterID: getLabel(labels, labelCluster), Namespace: getLabel(labels, labelNamespace),
			Name: getLabel(labels, labelName), UID: types.UID(getLabel(labels, labelUID)),
		},
		class: getLabel(labels, labelClass), hash: getLabel(labels, labelHash),
	}
}

// filterOf selects the VMs of a cluster and a class at Compute Engine.
func filterOf(clusterID, class string) string {
	labels := map[string]string{}
	putLabel(labels, labelCluster, clusterID)
	putLabel(labels, labelClass, class)
	terms := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		terms = append(terms, fmt.Sprintf(`(labels.%s="%s")`, key, labels[key]))
	}
	return strings.Join(terms, " ")
}

// putLabel writes a value into as many labels as it needs.
func putLabel(labels map[string]string, key, value string) {
	encoded := encode(value)
	for part := 1; ; part++ {
		cut := min(len(encoded), maxLabelValue)
		labels[partKey(key, part)] = encoded[:cut]
		if encoded = encoded[cut:]; encoded == "" {
			return
		}
	}
}

// getLabel is the inverse of putLabel; "" for what putLabel has not written.
func getLabel(labels map[string]string, key string) string {
	var encoded strings.Builder
	for part := 1; ; part++ {
		value, ok := labels[partKey(key, part)]
		if !ok {
			break
		}
		encoded.WriteString(value)
	}
	value, ok := decode(encoded.String())
	if !ok {
		return ""
	}
	return value
}

func partKey(key string, part int) string {
	if part == 1 {
		return key
	}
	return key + "-" + strconv.Itoa(part)
}

// encode writes any text with the characters of a label value. It leaves lower case letters, digits and hyphens as they are.
func encode(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		if b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-' {
			out.WriteByte(b)
			continue
		}
		out.WriteByte(escape)
		out.WriteString(hex.EncodeToString([]byte{b}))
	}
	return out.String()
}

func decode(text string) (string, bool) {
	var out []byte
	for i := 0; i < len(text); i++ {
		if text[i] != escape {
			out = append(out, text[i])
			continue
		}
		if i+2 >= len(text) {
			return "", false
		}
		b, err := hex.DecodeString(text[i+1 : i+3])
		if err != nil {
			return "", false
		}
		out = append(out, b...)
		i += 2
	}
	return string(out), true
}
