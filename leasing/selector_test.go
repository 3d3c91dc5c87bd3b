package leasing

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestSelectorsAreBounded(t *testing.T) {
	terms := func(labelled, expressions, values int) *metav1.LabelSelector {
		s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
		for i := range labelled {
			s.MatchLabels[fmt.Sprint("l", i)] = "x"
		}
		for i := range expressions {
			e := metav1.LabelSelectorRequirement{Key: fmt.Sprint("e", i), Operator: metav1.LabelSelectorOpIn}
			for v := range values {
				e.Values = append(e.Values, fmt.Sprint("v", v))
			}
			s.MatchExpressions = append(s.MatchExpressions, e)
		}
		return s
	}
	for name, c := range map[string]struct {
		selector *metav1.LabelSelector
		ok       bool
	}{
		"everything":       {terms(0, 0, 0), true},
		"most labels":      {terms(MaxSelectorTerms, 0, 0), true},
		"too many labels":  {terms(MaxSelectorTerms+1, 0, 0), false},
		"most of both":     {terms(MaxSelectorTerms/2, MaxSelectorTerms/2, 1), true},
		"too many of both": {terms(MaxSelectorTerms/2, MaxSelectorTerms/2+1, 1), false},
		"most values":      {terms(0, 1, MaxSelectorValues), true},
		"too many values":  {terms(0, 2, MaxSelectorValues/2+1), false},
		"no values":        {terms(0, 1, 0), false},
	} {
		selector, err := selectorOf(c.selector)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && selector.Matches(labels.Set{}) {
			t.Errorf("%s: an invalid selector selects something", name)
		}
	}
}
