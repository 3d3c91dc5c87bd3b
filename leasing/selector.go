package leasing

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// MaxSelectorTerms is the most labels and expressions of a lease's selector. The schema cannot bound the type of
	// Kubernetes, and the selector of a lease that waits is held in memory and tried again and again.
	MaxSelectorTerms = 32
	// MaxSelectorValues is the most values of all expressions of a selector together.
	MaxSelectorValues = 256
)

// selectorOf reads the selector of a lease that the schema let through.
func selectorOf(s *metav1.LabelSelector) (labels.Selector, error) {
	if n := len(s.MatchLabels) + len(s.MatchExpressions); n > MaxSelectorTerms {
		return labels.Nothing(), fmt.Errorf("the selector has %d labels and expressions, more than %d", n, MaxSelectorTerms)
	}
	values := 0
	for _, e := range s.MatchExpressions {
		values += len(e.Values)
	}
	if values > MaxSelectorValues {
		return labels.Nothing(), fmt.Errorf("the expressions of the selector have %d values, more than %d", values, MaxSelectorValues)
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing(), fmt.Errorf("read the selector: %w", err)
	}
	return selector, nil
}
